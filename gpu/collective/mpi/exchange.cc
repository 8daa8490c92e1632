#include "gpu/collective/mpi/exchange.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace moetap::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTag = 0;  // the communicator has no other user

std::string error_text(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check_call(int error, const char* what, int rank) {
  if (error == MPI_SUCCESS) return;
  throw CollectiveError(
      fmt::format("{} rank {} failed: {}; start the ranks again", what, rank, error_text(error)));
}

// Keeps memory for as long as the process lives.
template <class T>
void keep_for_ever(std::unique_ptr<T> memory) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::unique_ptr<T>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

// Short pauses at first: parts from the same machine take microseconds.
void pause(Clock::duration waited) {
  using namespace std::chrono_literals;
  if (waited < 50us) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(waited < 10ms ? 20us : 500us);
  }
}

}  // namespace

Exchange::Exchange(MPI_Comm ranks, std::uint64_t call, std::span<const std::int64_t> counts)
    : ranks_(ranks),
      call_(call),
      counts_(counts.begin(), counts.end()),
      memory_(std::make_unique<Memory>()) {
  MPI_Comm_size(ranks, &size_);
  MPI_Comm_rank(ranks, &rank_);
  std::int64_t total = 0;
  for (const std::int64_t count : counts_) {
    offsets_.push_back(total);
    total += count;
  }
  head_ = {.offset = offsets_[static_cast<std::size_t>(rank_)], .total = total};
  const auto n = static_cast<std::size_t>(size_);
  memory_->parts.resize(n);
  requests_.assign(2 * n, MPI_REQUEST_NULL);
  done_.resize(2 * n);
  statuses_.resize(2 * n);
}

Exchange::~Exchange() {
  bool pending = false;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    pending = true;
    if (i < static_cast<std::size_t>(size_)) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  if (pending) keep_for_ever(std::move(memory_));
}

std::size_t Exchange::part_bytes(int rank) const {
  return sizeof(PartHead) +
         static_cast<std::size_t>(counts_[static_cast<std::size_t>(rank)]) * sizeof(std::int32_t);
}

void Exchange::start(const std::int32_t* from) {
  const std::size_t bytes = part_bytes(rank_);
  memory_->own.resize(bytes);
  std::memcpy(memory_->own.data(), &head_, sizeof head_);
  if (bytes > sizeof head_) {
    std::memcpy(memory_->own.data() + sizeof head_, from, bytes - sizeof head_);
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    auto& part = memory_->parts[static_cast<std::size_t>(rank)];
    part.resize(part_bytes(rank));
    check_call(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, rank, kTag, ranks_,
                         &requests_[static_cast<std::size_t>(rank)]),
               "receiving from", rank);
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    check_call(
        MPI_Isend(memory_->own.data(), static_cast<int>(bytes), MPI_BYTE, rank, kTag, ranks_,
                  &requests_[static_cast<std::size_t>(size_) + static_cast<std::size_t>(rank)]),
        "sending to", rank);
  }
}

// Whether everything is done. A part is checked as soon as it has arrived.
bool Exchange::test_some() {
  int count = 0;
  const int error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                 done_.data(), statuses_.data());
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) check_call(error, "waiting as", rank_);
  if (count == MPI_UNDEFINED) return true;
  for (int i = 0; i < count; ++i) {
    const int index = done_[static_cast<std::size_t>(i)];
    const bool received = index < size_;
    const int rank = received ? index : index - size_;
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    const int failed = error == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    int kind = MPI_SUCCESS;
    if (failed != MPI_SUCCESS) MPI_Error_class(failed, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      throw MismatchError(
          fmt::format("rank {} sent more elements than the {} that rank {} expects of it: every "
                      "rank must be given the same counts",
                      rank, counts_[static_cast<std::size_t>(rank)], rank_));
    }
    check_call(failed, received ? "receiving from" : "sending to", rank);
    if (!received) continue;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != part_bytes(rank)) {
      throw MismatchError(
          fmt::format("rank {} sent {} bytes where rank {} expects {} of it: every rank must be "
                      "given the same counts",
                      rank, bytes, rank_, part_bytes(rank)));
    }
    check_part(rank);
  }
  return std::ranges::all_of(requests_, [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

void Exchange::check_part(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  PartHead theirs;
  std::memcpy(&theirs, memory_->parts[index].data(), sizeof theirs);
  if (theirs.offset == offsets_[index] && theirs.total == head_.total) return;
  throw MismatchError(fmt::format(
      "rank {} puts its part at {} of {} elements, rank {} expects it at {} of {}: every rank must "
      "be given the same counts",
      rank, theirs.offset, theirs.total, rank_, offsets_[index], head_.total));
}

void Exchange::throw_late(Milliseconds timeout) const {
  std::vector<int> missing;
  std::vector<int> not_taking;
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (requests_[index] != MPI_REQUEST_NULL) {
      missing.push_back(rank);
    } else if (requests_[index + static_cast<std::size_t>(size_)] != MPI_REQUEST_NULL) {
      not_taking.push_back(rank);
    }
  }
  throw TimeoutError(fmt::format(
      "gather {}: rank {} waited {} ms, and of {} ranks these are missing: {}{}; did they die, or "
      "are they still in an earlier step? Start the ranks again, or raise the timeout",
      call_, rank_, timeout.count(), size_, fmt::join(missing, ", "),
      not_taking.empty() ? ""
                         : fmt::format(" (and not taking what was sent to them: {})",
                                       fmt::join(not_taking, ", "))));
}

void Exchange::complete(Milliseconds timeout) {
  const auto start = Clock::now();
  while (!test_some()) {
    const auto waited = Clock::now() - start;
    if (waited >= timeout) throw_late(timeout);
    pause(waited);
  }
}

void Exchange::run(const std::int32_t* from, std::int32_t* to, Milliseconds timeout) {
  start(from);
  complete(timeout);
  for (std::size_t rank = 0; rank < counts_.size(); ++rank) {
    const auto& part =
        rank == static_cast<std::size_t>(rank_) ? memory_->own : memory_->parts[rank];
    const std::size_t bytes = part.size() - sizeof(PartHead);
    if (bytes > 0) std::memcpy(to + offsets_[rank], part.data() + sizeof(PartHead), bytes);
  }
}

}  // namespace moetap::mpi
