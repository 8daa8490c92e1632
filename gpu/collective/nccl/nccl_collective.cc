#include <moetap/error.h>
#include <moetap/nccl_collective.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/collective/collective_watch.h"
#include "gpu/device/cuda/call.h"
#include "gpu/device/cuda/stream.h"

namespace moetap {
namespace {

using Clock = std::chrono::steady_clock;

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  return fmt::format("{}{}{}", ncclGetErrorString(result),
                     last != nullptr && *last != '\0' ? ": " : "", last != nullptr ? last : "");
}

void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  throw CollectiveError(fmt::format("{} failed: {}", call, text_of(result, comm)));
}

// A communicator, and its operations with ranks that may never arrive.
class Communicator final : public CollectiveBackend {
 public:
  Communicator(ncclComm_t comm, int gpu, bool owned, Milliseconds timeout)
      : comm_(comm), gpu_(gpu), owned_(owned), timeout_(timeout) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Not ncclCommDestroy, which would wait for the other ranks.
  ~Communicator() override {
    if (!owned_ || comm_ == nullptr) return;
    const cuda::Scope scope(gpu_, std::nothrow);
    ncclCommAbort(comm_);
  }

  ncclComm_t get() const { return comm_; }
  int gpu() const { return gpu_; }

  // Waits for a call that may continue in the background.
  void settle(ncclResult_t result, const char* call) {
    const auto deadline = Clock::now() + timeout_;
    while (result == ncclInProgress) {
      if (Clock::now() >= deadline) {
        throw TimeoutError(
            fmt::format("{} is not done after {} ms, so some rank is missing: start all of them, "
                        "or raise the timeout",
                        call, timeout_.count()));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      check_nccl(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError", comm_);
    }
    check_nccl(result, call, comm_);
  }

  std::optional<std::string> error() override {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) return text_of(asked, comm_);
    if (result == ncclSuccess || result == ncclInProgress) return std::nullopt;
    return text_of(result, comm_);
  }

  void abort() noexcept override {
    const cuda::Scope scope(gpu_, std::nothrow);
    ncclCommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  ncclComm_t comm_;
  int gpu_;
  bool owned_;
  Milliseconds timeout_;
};

class NcclCollective final : public Collective {
 public:
  NcclCollective(Device& device, std::unique_ptr<Communicator> ranks, Milliseconds timeout)
      : gpu_(ranks->gpu()), comm_(std::move(ranks)) {
    ncclComm_t comm = comm_->get();
    check_nccl(ncclCommCount(comm, &size_), "ncclCommCount", comm);
    check_nccl(ncclCommUserRank(comm, &rank_), "ncclCommUserRank", comm);
    if (const std::string gpu = fmt::format("cuda:{}", gpu_); device.name() != gpu) {
      throw ArgumentError(
          fmt::format("device '{}' with a NCCL communicator of {}: give both the "
                      "same GPU",
                      device.name(), gpu));
    }
    watch_.emplace(device, *comm_, timeout, fmt::format("rank {} of {}", rank_, size_));
  }

  int size() const override { return size_; }
  int rank() const override { return rank_; }
  void gather(const std::int32_t* from, std::int32_t* to, std::span<const std::int64_t> counts,
              Stream& stream) override;
  void launched(Stream& stream) override { watch_->until_here(stream); }
  void check() override { watch_->check(); }

 private:
  void queue(const std::int32_t* from, std::int32_t* to, std::span<const std::int64_t> counts,
             cudaStream_t stream);

  int size_ = 0;
  int rank_ = 0;
  int gpu_;
  std::unique_ptr<Communicator> comm_;
  std::optional<CollectiveWatch> watch_;  // goes first
};

void NcclCollective::gather(const std::int32_t* from, std::int32_t* to,
                            std::span<const std::int64_t> counts, Stream& stream) {
  if (counts.size() != static_cast<std::size_t>(size_) ||
      std::ranges::any_of(counts, [](std::int64_t count) { return count < 0; })) {
    throw ArgumentError(fmt::format("counts {} for {} ranks: one for each, 0 or more",
                                    fmt::join(counts, ", "), size_));
  }
  const cudaStream_t handle = cuda::handle_of(stream, "a gather over NCCL");
  watch_->run(stream, [&] { queue(from, to, counts, handle); });
}

void NcclCollective::queue(const std::int32_t* from, std::int32_t* to,
                           std::span<const std::int64_t> counts, cudaStream_t stream) {
  const cuda::Scope scope(gpu_);
  const auto first = static_cast<std::size_t>(counts.front());
  if (std::ranges::all_of(counts, [&](std::int64_t n) { return n == counts.front(); })) {
    if (first > 0) {
      comm_->settle(ncclAllGather(from, to, first, ncclInt32, comm_->get(), stream),
                    "ncclAllGather");
    }
    return;
  }
  check_nccl(ncclGroupStart(), "ncclGroupStart", comm_->get());
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < size_ && (result == ncclSuccess || result == ncclInProgress); ++root) {
    const auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(root)]);
    if (count > 0) result = ncclBroadcast(from, to, count, ncclInt32, root, comm_->get(), stream);
    to += count;
  }
  const ncclResult_t ended = ncclGroupEnd();  // whatever happened before, or the thread would stay
                                              // in it
  if (result != ncclSuccess && result != ncclInProgress)
    check_nccl(result, "ncclBroadcast", comm_->get());
  comm_->settle(ended, "ncclGroupEnd");
}

}  // namespace

NcclId make_nccl_id() {
  ncclUniqueId unique;
  check_nccl(ncclGetUniqueId(&unique), "ncclGetUniqueId", nullptr);
  NcclId id;
  std::memcpy(id.data(), &unique, sizeof unique);
  return id;
}

std::unique_ptr<Collective> make_nccl_collective(Device& device, const NcclId& id, int size,
                                                 int rank, Milliseconds timeout) {
  if (size < 1 || rank < 0 || rank >= size || timeout <= Milliseconds(0)) {
    throw ArgumentError(
        fmt::format("rank {} of {}, within {} ms: ranks are 0 to size - 1, and the "
                    "timeout must be above 0",
                    rank, size, timeout.count()));
  }
  const std::string name = device.name();
  if (!name.starts_with("cuda:")) {
    throw ArgumentError(fmt::format("device '{}' with NCCL, which connects GPUs", name));
  }
  const int gpu = std::stoi(name.substr(5));
  const cuda::Scope scope(gpu);
  ncclUniqueId unique;
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun = ncclCommInitRankConfig(&comm, size, unique, rank, &config);
  auto communicator = std::make_unique<Communicator>(comm, gpu, true, timeout);
  communicator->settle(begun, "ncclCommInitRankConfig");
  return std::make_unique<NcclCollective>(device, std::move(communicator), timeout);
}

std::unique_ptr<Collective> make_nccl_collective(Device& device, ncclComm* ranks,
                                                 Milliseconds timeout) {
  if (ranks == nullptr || timeout <= Milliseconds(0)) {
    throw ArgumentError(fmt::format("a null communicator, or a timeout of {} ms", timeout.count()));
  }
  int gpu = 0;
  check_nccl(ncclCommCuDevice(ranks, &gpu), "ncclCommCuDevice", ranks);
  return std::make_unique<NcclCollective>(
      device, std::make_unique<Communicator>(ranks, gpu, false, timeout), timeout);
}

}  // namespace moetap
