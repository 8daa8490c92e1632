// Formats numbers and untrusted text for people to read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moetap::tool {

// "3.2 MB"; powers of 1000.
std::string human_bytes(std::uint64_t bytes);

// Valid UTF-8 without terminal control characters: other bytes become \xNN.
std::string printable(std::string_view text);

// "process 4711", or `none` for 0.
std::string process(int pid, std::string_view none);

}  // namespace moetap::tool
