// Rows that a read left where they are. Whoever has them keeps the memory from being used again, so
// that each such loan has a holder with a name.
#pragma once

#include <moetap/routes.h>
#include <moetap/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moetap {

class Lease;

// "2 leases are out, the oldest is held by request 7 for 1250 ms", for messages.
std::string describe_leases(std::size_t leases, std::string_view holder,
                            std::chrono::nanoseconds age);

// The loans of one lender. Its leases may end in any thread.
class LeaseBook {
 public:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string holder;
    Clock::time_point since;
  };

  // Is told how many leases are out and which is the oldest (null: none), whenever that changes
  // while the book lives: by whichever thread changes it, one at a time. May not throw, nor use the
  // book.
  using Watcher = std::function<void(std::size_t leases, const Entry* oldest)>;

  explicit LeaseBook(Watcher watcher = {});
  ~LeaseBook();  // the memory is gone: no lease stands any more
  LeaseBook(const LeaseBook&) = delete;
  LeaseBook& operator=(const LeaseBook&) = delete;

  Lease lend(std::string holder);

  std::size_t size() const;
  // Of those that have not ended.
  std::optional<Entry> oldest() const;
  // See describe_leases(); "no lease is out".
  std::string describe() const;

  // Returns true when no lease is out, false at the deadline.
  bool wait_until_back(Clock::time_point deadline) const;

 private:
  friend class Lease;
  struct State;
  std::shared_ptr<State> state_;
};

// Ends when it is destroyed, or the lender's memory is. Movable.
class Lease {
 public:
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  bool stands() const;

 private:
  friend class LeaseBook;
  Lease(std::shared_ptr<LeaseBook::State> state, std::list<LeaseBook::Entry>::iterator entry)
      : state_(std::move(state)), entry_(entry) {}

  std::shared_ptr<LeaseBook::State> state_;
  std::list<LeaseBook::Entry>::iterator entry_;
};

// As Routes, but the rows may still be the lender's. Movable. row() and detach() look for the
// lender first and then at its memory: the reader may not be destroyed while another thread is in
// one.
class RoutesView {
 public:
  // Owned from the start.
  explicit RoutesView(Routes routes) : owned_(std::move(routes)) {}
  // rows[i]: the row of position range.start + i, or null for one that is not present.
  RoutesView(ModelShape shape, TokenRange range, std::vector<const std::byte*> rows,
             std::vector<RowState> states, Lease lease);

  const ModelShape& shape() const { return owned_ ? owned_->shape() : loan_->shape; }
  TokenRange range() const { return owned_ ? owned_->range() : loan_->range; }
  std::span<const RowState> states() const;
  bool owned() const { return owned_.has_value(); }

  // By position in the sequence; row_bytes narrow ids, 0xFF for a row that is not present.
  // RangeError outside range(), StateError if the lender is gone.
  std::span<const std::byte> row(std::int64_t position) const;

  // The rows as one's own, and the lease ends; copies them only if they are not that already.
  // StateError if the lender is gone.
  Routes detach() &&;

 private:
  struct Loan {
    ModelShape shape;
    TokenRange range;
    std::vector<const std::byte*> rows;
    std::vector<RowState> states;
    std::vector<std::byte> no_row;
    Lease lease;
  };
  void require_lender() const;

  std::optional<Routes> owned_;
  std::optional<Loan> loan_;
};

}  // namespace moetap
