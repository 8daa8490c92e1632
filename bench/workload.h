// The workload of every benchmark here and of the Python baseline (python_design.py): the same
// models, token counts and slots.
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moetap::bench {

inline constexpr std::array<const char*, 3> kModels{"qwen3-30b-a3b", "deepseek-v3",
                                                    "nemotron-3-super"};
inline constexpr std::array<std::int64_t, 6> kTokens{1, 16, 64, 256, 2048, 8192};
// The number of steps per run, for operations that need a forward pass before each repetition: some
// tens of milliseconds, and once through the working set if that is a few steps.
constexpr std::int64_t steps_of(std::int64_t tokens) {
  return tokens >= 8192 ? 8 : tokens >= 2048 ? 32 : tokens >= 256 ? 128 : 256;
}

inline constexpr std::int64_t kMaxTokens = 8192;
inline constexpr std::int64_t kBlockSize = 16;

// The number of slots in the buffer, unless a benchmark varies it.
inline constexpr std::int64_t kSlots = 64 * 1024;

// The number of slots that a benchmark cycles through, whatever the buffer's size and the step's
// tokens. So all compared variants have the same share of the caches. A scheduler reads what was
// written in the last seconds: about this many rows, which fit the shared cache but not a core's
// own.
inline constexpr std::int64_t kWorkingSet = 16 * 1024;

// The working set in steps of `tokens`: blocks of kBlockSize slots, drawn at random from the whole
// buffer without repetition, as a paged KV cache under load hands them out.
class SlotMappings {
 public:
  explicit SlotMappings(std::int64_t num_slots = kSlots);

  // The whole working set; step `i` of `tokens` tokens has slots()[offset(i, tokens) …].
  std::span<const Slot> slots() const { return slots_; }
  static std::int64_t offset(std::uint64_t i, std::int64_t tokens) {
    return static_cast<std::int64_t>(i % static_cast<std::uint64_t>(kWorkingSet / tokens)) * tokens;
  }
  std::span<const Slot> step(std::uint64_t i, std::int64_t tokens) const {
    return std::span(slots_).subspan(static_cast<std::size_t>(offset(i, tokens)),
                                     static_cast<std::size_t>(tokens));
  }

 private:
  std::vector<Slot> slots_;
};

// A random generator that two languages can share (Knuth's MMIX constants), for the order of blocks
// and for expert ids.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t limit) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33) % limit;
  }

 private:
  std::uint64_t state_;
};

// Valid ids of the model, `count` of them, distinct in each top_k.
template <class Id>
std::vector<Id> random_ids(const ModelShape& shape, std::size_t count) {
  Random random(1);
  std::vector<Id> ids(count);
  const auto top_k = static_cast<std::size_t>(shape.top_k());
  for (std::size_t i = 0; i < count;) {
    ids[i] = static_cast<Id>(random.below(static_cast<std::uint64_t>(shape.num_experts())));
    const auto row = ids.begin() + static_cast<std::ptrdiff_t>(i / top_k * top_k);
    const auto own = ids.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(row, own, *own) == own) ++i;
  }
  return ids;
}

// All blocks of a buffer, in a random order.
std::vector<BlockId> shuffled_blocks(std::int64_t num_slots, std::int64_t block_size = kBlockSize);

// Narrow rows with valid ids.
std::vector<std::byte> random_rows(const ModelShape& shape, std::int64_t tokens);

// "publish/shm/qwen3-30b-a3b/256"
std::string name(std::string_view what, std::string_view who, std::string_view model,
                 std::int64_t tokens);

}  // namespace moetap::bench
