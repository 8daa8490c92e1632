#include <moetap/error.h>
#include <moetap/mpi_collective.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <vector>

#include "gpu/collective/mpi/exchange.h"

namespace moetap {
namespace {

class MpiCollective final : public Collective {
 public:
  MpiCollective(MPI_Comm ranks, Milliseconds timeout) : ranks_(ranks), timeout_(timeout) {
    MPI_Comm_size(ranks, &size_);
    MPI_Comm_rank(ranks, &rank_);
    MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
  }

  int size() const override { return size_; }
  int rank() const override { return rank_; }
  void gather(const std::int32_t* from, std::int32_t* to, std::span<const std::int64_t> counts,
              Stream& stream) override;
  void launched(Stream&) override { check(); }  // a graph cannot contain this kind of gather
  void check() override;

 private:
  struct Call {
    MpiCollective* self;
    std::uint64_t number;
    const std::int32_t* from;
    std::int32_t* to;
    std::vector<std::int64_t> counts;
  };
  void check_counts(std::span<const std::int64_t> counts) const;
  static void run(void* argument) noexcept;

  MPI_Comm ranks_;
  Milliseconds timeout_;
  int size_ = 0;
  int rank_ = 0;
  std::uint64_t calls_ = 0;

  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

void MpiCollective::check_counts(std::span<const std::int64_t> counts) const {
  // MPI's counts: bytes, as an int.
  constexpr std::int64_t kMost = (std::numeric_limits<int>::max() - 64) / 4;
  if (counts.size() != static_cast<std::size_t>(size_)) {
    throw ArgumentError(fmt::format("{} counts for {} ranks", counts.size(), size_));
  }
  for (const std::int64_t count : counts) {
    if (count < 0 || count > kMost) {
      throw ArgumentError(fmt::format("a part of {} elements; allowed are 0 to {}", count, kMost));
    }
  }
}

void MpiCollective::gather(const std::int32_t* from, std::int32_t* to,
                           std::span<const std::int64_t> counts, Stream& stream) {
  check();
  check_counts(counts);
  if (records_graph(stream)) {
    throw StateError(
        "gather() over MPI on a stream that records a graph: MPI calls cannot be replayed. Gather "
        "before or after the graph; over NCCL it may be inside");
  }
  auto call = std::make_unique<Call>(
      Call{this, calls_ + 1, from, to, std::vector(counts.begin(), counts.end())});
  stream.call(&MpiCollective::run, call.get());
  (void)call.release();  // run() uses it
  ++calls_;
}

void MpiCollective::run(void* argument) noexcept {
  const std::unique_ptr<const Call> call(static_cast<const Call*>(argument));
  MpiCollective& self = *call->self;
  if (self.failed_.load(std::memory_order_acquire)) return;
  try {
    mpi::Exchange exchange(self.ranks_, call->number, call->counts);
    exchange.run(call->from, call->to, self.timeout_);
  } catch (...) {
    const std::lock_guard lock(self.failure_mutex_);
    self.failure_ = std::current_exception();
    self.failed_.store(true, std::memory_order_release);
  }
}

void MpiCollective::check() {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(failure_mutex_);
  std::rethrow_exception(failure_);
}

}  // namespace

std::unique_ptr<Collective> make_mpi_collective(Device& device, MPI_Comm ranks,
                                                Milliseconds timeout) {
  if (!device.name().starts_with("host") && device.name() != "inline") {
    throw ArgumentError(
        fmt::format("device '{}' with a gather over MPI, which reads host memory only: use NCCL",
                    device.name()));
  }
  int running = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&running);
  if (running != 0) MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) {
    throw StateError(
        "MPI must be started with MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …) before a gather over "
        "it is made: streams call it from threads of their own");
  }
  if (timeout <= Milliseconds(0)) {
    throw ArgumentError(fmt::format("a timeout of {} ms", timeout.count()));
  }
  return std::make_unique<MpiCollective>(ranks, timeout);
}

}  // namespace moetap
