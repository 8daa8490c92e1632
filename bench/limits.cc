// The lower bound for any transport: narrow rows moved by plain loops, without lock, stamp, check
// or notification. The same rows, slots and kind of memory as the transports' (4 KiB pages that
// processes share).
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/fixture.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

class SharedRows {
 public:
  explicit SharedRows(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    data_ = static_cast<std::byte*>(memory);
    std::memset(data_, 1, bytes);
  }
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;
  ~SharedRows() { munmap(data_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

struct Limit {
  explicit Limit(const char* model)
      : shape(ModelShape::known(model)),
        row_bytes(shape.row_bytes()),
        buffer(kSlots * row_bytes),
        step(random_rows(shape, kMaxTokens)) {}

  void memcpy_rows(std::span<const Slot>, std::int64_t first, std::int64_t tokens) {
    std::memcpy(buffer.data() + static_cast<std::size_t>(first) * row_bytes, step.data(),
                static_cast<std::size_t>(tokens) * row_bytes);
  }
  void scatter(std::span<const Slot> slots, std::int64_t, std::int64_t) {
    const std::byte* from = step.data();
    for (const Slot slot : slots) {
      std::memcpy(buffer.data() + static_cast<std::size_t>(slot.value()) * row_bytes, from,
                  row_bytes);
      from += row_bytes;
    }
  }
  void gather(std::span<const Slot> slots, std::int64_t, std::int64_t) {
    std::byte* to = step.data();
    for (const Slot slot : slots) {
      std::memcpy(to, buffer.data() + static_cast<std::size_t>(slot.value()) * row_bytes,
                  row_bytes);
      to += row_bytes;
    }
  }

  ModelShape shape;
  std::size_t row_bytes;
  SlotMappings mappings;
  SharedRows buffer;
  std::vector<std::byte> step;
};

using Move = void (Limit::*)(std::span<const Slot>, std::int64_t, std::int64_t);

void run(benchmark::State& state, const char* model, std::int64_t tokens, Move move) {
  auto& limit = fixture<Limit>(std::string("limit/") + model, model);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    const std::int64_t first = SlotMappings::offset(i, tokens);
    (limit.*move)(limit.mappings.step(i, tokens), first, tokens);
    benchmark::ClobberMemory();
    ++i;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * tokens *
                          static_cast<std::int64_t>(limit.row_bytes));
}

}  // namespace

void register_limits() {
  for (const char* model : kModels) {
    for (const std::int64_t tokens : kTokens) {
      const auto add = [&](const char* what, Move move) {
        benchmark::RegisterBenchmark(name("limit", what, model, tokens).c_str(), run, model, tokens,
                                     move);
      };
      add("memcpy", &Limit::memcpy_rows);
      add("scatter", &Limit::scatter);
      add("gather", &Limit::gather);
    }
  }
}

}  // namespace moetap::bench
