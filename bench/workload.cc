#include "bench/workload.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace moetap::bench {

std::vector<BlockId> shuffled_blocks(std::int64_t num_slots, std::int64_t block_size) {
  std::vector<BlockId> blocks(static_cast<std::size_t>(num_slots / block_size));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i);
  Random random(2);
  for (std::size_t i = blocks.size() - 1; i > 0; --i) {
    std::swap(blocks[i], blocks[random.below(i + 1)]);
  }
  return blocks;
}

SlotMappings::SlotMappings(std::int64_t num_slots) {
  const std::vector<BlockId> blocks = shuffled_blocks(num_slots);
  slots_.reserve(kWorkingSet);
  for (std::size_t i = 0; std::ssize(slots_) < kWorkingSet; ++i) {
    for (std::int64_t offset = 0; offset < kBlockSize; ++offset) {
      slots_.push_back(first_slot(blocks[i], kBlockSize) + offset);
    }
  }
}

std::vector<std::byte> random_rows(const ModelShape& shape, std::int64_t tokens) {
  const std::size_t count = static_cast<std::size_t>(tokens) * shape.row_ids();
  std::vector<std::byte> rows(count * id_bytes(shape.id_type()));
  if (shape.id_type() == IdType::uint8) {
    std::memcpy(rows.data(), random_ids<std::uint8_t>(shape, count).data(), rows.size());
  } else {
    std::memcpy(rows.data(), random_ids<std::uint16_t>(shape, count).data(), rows.size());
  }
  return rows;
}

std::string name(std::string_view what, std::string_view who, std::string_view model,
                 std::int64_t tokens) {
  return fmt::format("{}/{}/{}/{}", what, who, model, tokens);
}

}  // namespace moetap::bench
