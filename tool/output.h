// Standard output. What does not arrive there is an error: a script must not take half of a result
// for all of it.
#pragma once

#include <string_view>

#include "tool/interrupts.h"

namespace moetap::tool {

// Before anything is opened: a standard descriptor that is closed would become the next file's.
void occupy_standard_descriptors();

// SystemError.
void print(std::string_view text);

// The same; false if a signal came before somebody took all of it.
bool print(std::string_view text, const Interrupts& interrupts);

}  // namespace moetap::tool
