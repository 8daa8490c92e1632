// The border of the libraries: programs link against what carries this macro, and all else in them
// is hidden.
#pragma once

#define MOETAP_API __attribute__((visibility("default")))
