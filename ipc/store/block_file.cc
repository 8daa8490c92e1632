#include "ipc/store/block_file.h"

#include <boost/crc.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

namespace moetap {
namespace {

static_assert(std::endian::native == std::endian::little, "block files are little-endian");

constexpr std::uint32_t kVersion = 2;

struct Head {
  char magic[8];
  std::uint32_t version;
  std::uint32_t crc;
};
static_assert(sizeof(Head) == 16);

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

template <class Integer>
void append_number(std::vector<std::byte>& to, Integer number) {
  const auto wide = static_cast<std::uint32_t>(number);
  append(to, std::as_bytes(std::span(&wide, 1)));
}

std::vector<std::byte> describe(const BlockStoreOptions& options) {
  std::vector<std::byte> text;
  append_number(text, options.block_size);
  append_number(text, options.shape.top_k());
  append_number(text, options.shape.num_experts());
  const int repeats = options.shape.repeats_experts() ? 0x100 : 0;
  append_number(text, static_cast<int>(options.shape.weight_type()) | repeats);
  append_number(text, options.shape.num_layers());
  for (const int layer : options.shape.moe_layers()) append_number(text, layer);
  append_number(text, options.model_version.size());
  append(text, std::as_bytes(std::span(options.model_version)));
  return text;
}

}  // namespace

BlockFile::BlockFile(BlockStoreOptions options)
    : options_(std::move(options)),
      description_(describe(options_)),
      block_bytes_(options_.block_bytes()),
      suffix_(fmt::format("-{:08x}{}", crc32c(description_), kSuffix)) {}

std::string BlockFile::name(const BlockKey& key) const { return key.hex() + suffix_; }

std::size_t BlockFile::bytes(const BlockKey& key) const {
  return sizeof(Head) + description_.size() + sizeof(std::uint32_t) + key.bytes().size() +
         block_bytes_;
}

void BlockFile::encode(const BlockKey& key, std::span<const std::byte> rows,
                       std::vector<std::byte>& file) const {
  file.assign(sizeof(Head), std::byte{0});
  append(file, description_);
  append_number(file, key.bytes().size());
  append(file, key.bytes());
  append(file, rows);
  Head head{{}, kVersion, crc32c(std::span(file).subspan(sizeof(Head)))};
  std::ranges::copy(kMagic, head.magic);
  std::memcpy(file.data(), &head, sizeof head);
}

BlockFile::Kind BlockFile::check(const BlockKey& key, std::span<const std::byte> file) const {
  Head head{};
  std::ranges::copy(file.first(std::min(file.size(), sizeof head)),
                    std::as_writable_bytes(std::span(&head, 1)).begin());
  if (std::string_view(head.magic, sizeof head.magic) != kMagic) return Kind::foreign;
  if (file.size() < sizeof head) return Kind::damaged;
  if (head.version != kVersion) return Kind::foreign;
  if (file.size() != bytes(key) || head.crc != crc32c(file.subspan(sizeof head))) {
    return Kind::damaged;
  }
  // A whole block file. If its description differs, its name is wrong.
  std::vector<std::byte> expected(file.begin(), file.begin() + sizeof head);
  append(expected, description_);
  append_number(expected, key.bytes().size());
  append(expected, key.bytes());
  if (!std::ranges::equal(expected, file.first(expected.size()))) return Kind::foreign;
  return options_.can_be_present(rows(file)) ? Kind::good : Kind::damaged;  // H20
}

}  // namespace moetap
