#include <moetap/error.h>
#include <moetap/slots.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lib/internal/number_format.h"

namespace moetap {
namespace {

void check_range(std::span<const BlockId> blocks, int block_size, TokenRange range) {
  if (block_size < 1) {
    throw ArgumentError(fmt::format("block size {}; it must be at least 1", block_size));
  }
  const auto covered = static_cast<std::int64_t>(blocks.size()) * block_size;
  if (range.start < 0 || range.end < range.start || range.end > covered) {
    throw RangeError(
        fmt::format("positions [{}, {}) of a sequence that owns {} blocks of {}, which hold [0, "
                    "{}): give all of "
                    "its blocks, and positions within them",
                    range.start, range.end, blocks.size(), block_size, covered));
  }
}

// Checks only the blocks that the range uses: other entries of an engine's table may be anything.
void check_block(BlockId block, std::int64_t index, int block_size) {
  const BlockId limit(Slot::max().value() / block_size);
  if (block < 0 || block >= limit) {
    throw RangeError(fmt::format("block id {} at index {}; allowed are 0 to {}", block, index,
                                 limit.value() - 1));
  }
}

std::string_view kind_name(KvCacheGroup::Kind kind) {
  switch (kind) {
    case KvCacheGroup::Kind::full_attention:
      return "full attention";
    case KvCacheGroup::Kind::mla:
      return "MLA";
    case KvCacheGroup::Kind::sliding_window:
      return "sliding window";
    case KvCacheGroup::Kind::chunked_local:
      return "chunked local";
    case KvCacheGroup::Kind::mamba:
      return "mamba";
    case KvCacheGroup::Kind::uniform:
      return "uniform";
  }
  return "unknown";
}

bool is_full_attention(const KvCacheGroup& group) {
  switch (group.kind) {
    case KvCacheGroup::Kind::full_attention:
    case KvCacheGroup::Kind::mla:
      return true;
    case KvCacheGroup::Kind::uniform:
      return !group.members.empty() &&
             std::all_of(group.members.begin(), group.members.end(), is_full_attention);
    default:
      return false;
  }
}

std::string describe(std::span<const KvCacheGroup> groups) {
  std::string text;
  for (const KvCacheGroup& group : groups) {
    if (!text.empty()) text += ", ";
    text += kind_name(group.kind);
    if (group.kind == KvCacheGroup::Kind::uniform) text += " (" + describe(group.members) + ")";
  }
  return text.empty() ? "none" : text;
}

}  // namespace

void slots_of(std::span<const BlockId> blocks, int block_size, TokenRange range,
              std::span<Slot> out) {
  check_range(blocks, block_size, range);
  if (static_cast<std::int64_t>(out.size()) != range.size()) {
    throw ArgumentError(
        fmt::format("room for {} slots, but the range has {}", out.size(), range.size()));
  }
  if (out.empty()) return;
  for (std::int64_t b = range.start / block_size; b <= (range.end - 1) / block_size; ++b) {
    check_block(blocks[static_cast<std::size_t>(b)], b, block_size);
  }
  Slot* next = out.data();
  for (std::int64_t position = range.start; position < range.end;) {
    const std::int64_t b = position / block_size;
    const std::int64_t end = std::min(range.end, (b + 1) * block_size);
    Slot slot = first_slot(blocks[static_cast<std::size_t>(b)], block_size) + position % block_size;
    for (; position < end; ++position) *next++ = slot++;
  }
}

std::vector<Slot> slots_of(std::span<const BlockId> blocks, int block_size, TokenRange range) {
  check_range(blocks, block_size, range);
  std::vector<Slot> slots(static_cast<std::size_t>(range.size()));
  slots_of(blocks, block_size, range, slots);
  return slots;
}

std::size_t anchor_group(std::span<const KvCacheGroup> groups) {
  const auto anchor = std::find_if(groups.begin(), groups.end(), is_full_attention);
  if (anchor == groups.end()) {
    throw ArgumentError(
        "no KV-cache group is full attention (or MLA), so no slots name the rows; the groups "
        "are: " +
        describe(groups));
  }
  return static_cast<std::size_t>(anchor - groups.begin());
}

}  // namespace moetap
