// One gather over MPI: every rank sends its part to every other.
#pragma once

#include <moetap/error.h>
#include <moetap/types.h>

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace moetap::mpi {

// The header that precedes a rank's elements, so that ranks whose counts differ notice.
struct PartHead {
  std::int64_t offset;  // of the part in the whole, in elements
  std::int64_t total;
};

class Exchange {
 public:
  // `call` numbers it in messages.
  Exchange(MPI_Comm ranks, std::uint64_t call, std::span<const std::int64_t> counts);
  // Cancels what is still running. MPI may use the memory for ever: a send to a dead rank cannot be
  // cancelled.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Fills `to` when every part has arrived; otherwise leaves it unchanged. TimeoutError,
  // MismatchError, CollectiveError.
  void run(const std::int32_t* from, std::int32_t* to, Milliseconds timeout);

 private:
  struct Memory {
    std::vector<std::byte> own;
    std::vector<std::vector<std::byte>> parts;  // by rank
  };

  void start(const std::int32_t* from);
  void complete(Milliseconds timeout);
  bool test_some();
  void check_part(int rank) const;
  [[noreturn]] void throw_late(Milliseconds timeout) const;
  std::size_t part_bytes(int rank) const;

  MPI_Comm ranks_;
  int size_ = 0;
  int rank_ = 0;
  std::uint64_t call_;
  PartHead head_{};
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
  std::unique_ptr<Memory> memory_;
  std::vector<MPI_Request> requests_;  // receives by rank, then sends by rank
  std::vector<int> done_;              // scratch of test_some()
  std::vector<MPI_Status> statuses_;
};

}  // namespace moetap::mpi
