#include "tool/text.h"

#include <fmt/format.h>

namespace moetap::tool {

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::string_view units = "kMGTP";
  for (value /= 1000; value >= 1000 && units.size() > 1; value /= 1000) units.remove_prefix(1);
  return fmt::format("{:.{}f} {}B", value, value < 10 ? 1 : 0, units[0]);
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c >= 0x20 && c < 0x7F) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

std::string process(int pid, std::string_view none) {
  return pid == 0 ? std::string(none) : fmt::format("process {}", pid);
}

}  // namespace moetap::tool
