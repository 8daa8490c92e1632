// Rows that are lent instead of copied. Each loan keeps its memory from being reused, and so has a
// named holder.
#pragma once

#include <moetap/export.h>
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
MOETAP_API std::string describe_leases(std::size_t leases, std::string_view holder,
                                       std::chrono::nanoseconds age);

// The leases of one lender. A lease may end in any thread.
class MOETAP_API LeaseBook {
 public:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string holder;
    Clock::time_point since;
  };

  // Called whenever the number of leases changes, with that number and the oldest lease (null:
  // none). It runs in the thread that makes the change, one call at a time. It must not throw, nor
  // use the book.
  using Watcher = std::function<void(std::size_t leases, const Entry* oldest)>;

  explicit LeaseBook(Watcher watcher = {});
  ~LeaseBook();  // invalidates all leases: the memory is gone
  LeaseBook(const LeaseBook&) = delete;
  LeaseBook& operator=(const LeaseBook&) = delete;

  [[nodiscard]] Lease lend(std::string holder);

  std::size_t size() const;
  // The oldest lease that has not ended.
  std::optional<Entry> oldest() const;
  // See describe_leases(); "no lease is out" if there is none.
  std::string describe() const;

  // Blocks until no lease is out (true) or until the deadline (false).
  bool wait_until_back(Clock::time_point deadline) const;

 private:
  friend class Lease;
  struct State;
  std::shared_ptr<State> state_;
};

// Ends when it is destroyed, or when the lender's memory is. Movable.
class MOETAP_API Lease {
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

// As Routes, but the rows may still be in the lender's memory. Movable. row() and detach() check
// that the lender exists and then read its memory. So the reader must not be destroyed while
// another thread is in one of these calls.
class MOETAP_API RoutesView {
 public:
  // Owns its rows from the start.
  explicit RoutesView(Routes routes) : owned_(std::move(routes)) {}
  // rows[i]: the row of position range.start + i, or null if the row is not present.
  RoutesView(ModelShape shape, TokenRange range, std::vector<const std::byte*> rows,
             std::vector<RowState> states, Lease lease);

  const ModelShape& shape() const { return owned_ ? owned_->shape() : loan_->shape; }
  TokenRange range() const { return owned_ ? owned_->range() : loan_->range; }
  std::span<const RowState> states() const;
  bool owned() const { return owned_.has_value(); }

  // The row at a position of the sequence: row_bytes() bytes, all 0xFF if the row is not present.
  // RangeError outside range(), StateError if the lender is gone.
  std::span<const std::byte> row(std::int64_t position) const;

  // Returns the rows as Routes and ends the lease. Copies them only if they are lent. StateError if
  // the lender is gone.
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
