// What one of our libraries needs from another, and no public header declares. As few as possible:
// each is part of a library's border that no user may use.
#pragma once

#include <moetap/export.h>

#define MOETAP_INTERNAL_API MOETAP_API

// A part of a public class that is its own only: State in most.
#define MOETAP_HIDDEN __attribute__((visibility("hidden")))
