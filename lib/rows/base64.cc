// RFC 4648, section 4. Boost's own (beast) is not public, and archive's iterators do not check.
#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

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

// What two characters say, 12 bits. Groups of four are most of the work.
constexpr auto kPairs = [] {
  std::array<std::array<char, 2>, 4096> pairs{};
  for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = {kAlphabet[i >> 6], kAlphabet[i & 63]};
  return pairs;
}();

// The bits of each character of a group, where they belong; kBadBits for a bad one.
constexpr std::uint32_t kBadBits = 1u << 31;
constexpr auto kBits = [] {
  std::array<std::array<std::uint32_t, 256>, 4> bits{};
  for (std::size_t at = 0; at < bits.size(); ++at) {
    for (std::size_t c = 0; c < kValues.size(); ++c) {
      bits[at][c] = kValues[c] == kBad ? kBadBits : std::uint32_t{kValues[c]} << (18 - 6 * at);
    }
  }
  return bits;
}();

std::uint32_t group_of(const char* four) {
  std::uint32_t group = 0;
  for (std::size_t at = 0; at < 4; ++at) group |= kBits[at][static_cast<unsigned char>(four[at])];
  return group;
}

[[noreturn]] void bad_character(std::size_t offset) {
  throw ArgumentError(fmt::format(
      "base64: bad character at offset {}: give the text as base64_encode() makes it, in one line",
      offset));
}

}  // namespace

std::string base64_encode(std::span<const std::byte> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '=');
  char* out = text.data();
  std::size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3, out += 4) {
    const auto group = std::to_integer<std::uint32_t>(bytes[i]) << 16 |
                       std::to_integer<std::uint32_t>(bytes[i + 1]) << 8 |
                       std::to_integer<std::uint32_t>(bytes[i + 2]);
    std::memcpy(out, kPairs[group >> 12].data(), 2);
    std::memcpy(out + 2, kPairs[group & 0xFFF].data(), 2);
  }
  if (const std::size_t count = bytes.size() - i; count > 0) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < count; ++j) {
      group |= std::to_integer<std::uint32_t>(bytes[i + j]) << (16 - 8 * j);
    }
    for (std::size_t j = 0; j <= count; ++j) out[j] = kAlphabet[group >> (18 - 6 * j) & 63];
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
  std::size_t i = 0;
  for (; i + 4 < text.size(); i += 4) {  // but the last, and to a bad one
    const std::uint32_t group = group_of(text.data() + i);
    if ((group & kBadBits) != 0) break;
    *out++ = static_cast<std::byte>(group >> 16);
    *out++ = static_cast<std::byte>(group >> 8 & 0xFF);
    *out++ = static_cast<std::byte>(group & 0xFF);
  }
  if (i < text.size()) {  // that one, looked at by the character
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
