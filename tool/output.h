// Standard output. Output that does not arrive is an error: a script must not take part of a result
// for all of it.
#pragma once

#include <string_view>

#include "tool/interrupts.h"

namespace moetap::tool {

// Call it before anything is opened: the next file would get the number of a closed standard
// descriptor.
void occupy_standard_descriptors();

// SystemError.
void print(std::string_view text);

// The same; returns false if a signal arrived before all of it was read.
bool print(std::string_view text, const Interrupts& interrupts);

}  // namespace moetap::tool
