// RFC 4648, section 4. Boost's own (beast) is not public, and archive's iterators do not check.
#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace moetap {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kBad = 0xFF;

constexpr auto kValues = [] {
  std::array<std::uint8_t, 256> values{};
  values.fill(kBad);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return values;
}();

[[noreturn]] void bad_character(std::size_t offset) {
  throw ArgumentError(fmt::format(
      "base64: bad character at offset {}: give the text as base64_encode() makes it, in one line",
      offset));
}

}  // namespace

std::string base64_encode(std::span<const std::byte> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '=');
  char* out = text.data();
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < count; ++j) {
      group |= std::to_integer<std::uint32_t>(bytes[i + j]) << (16 - 8 * j);
    }
    for (std::size_t j = 0; j <= count; ++j) out[j] = kAlphabet[group >> (18 - 6 * j) & 63];
    out += 4;
  }
  return text;
}

std::vector<std::byte> base64_decode(std::string_view text) {
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (text.size() % 4 != 0) {
    const std::size_t end = text.size() - padding;
    const auto* const bad = std::find_if(text.begin(), text.begin() + end, [](char c) {
      return kValues[static_cast<unsigned char>(c)] == kBad;
    });
    if (bad != text.begin() + end) bad_character(static_cast<std::size_t>(bad - text.begin()));
    throw ArgumentError(fmt::format(
        "base64: the text ends within a group of 4, at offset {}: it is cut off, or lacks "
        "the '=' at its end",
        text.size()));
  }
  std::vector<std::byte> bytes(text.size() / 4 * 3 - padding);
  auto out = bytes.begin();
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const std::size_t count = i + 4 < text.size() ? 4 : 4 - padding;
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < count; ++j) {
      const std::uint8_t value = kValues[static_cast<unsigned char>(text[i + j])];
      if (value == kBad) bad_character(i + j);
      group |= std::uint32_t{value} << (18 - 6 * j);
    }
    // A padded group's last digit has bits that belong to no byte; an encoder writes 0 there.
    if ((group & ((1u << 8 * (4 - count)) - 1)) != 0) bad_character(i + count - 1);
    for (std::size_t j = 0; j + 1 < count; ++j) {
      *out++ = static_cast<std::byte>(group >> (16 - 8 * j) & 0xFF);
    }
  }
  return bytes;
}

}  // namespace moetap
