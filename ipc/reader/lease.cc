#include <moetap/error.h>
#include <moetap/lease.h>

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "lib/internal/export.h"

namespace moetap {

struct MOETAP_HIDDEN LeaseBook::State {
  mutable std::mutex mutex;
  std::list<Entry> entries;  // the oldest first
  bool closed = false;
  Watcher watcher;

  void changed() const {
    if (watcher) watcher(entries.size(), entries.empty() ? nullptr : &entries.front());
  }
};

std::string describe_leases(std::size_t leases, std::string_view holder,
                            std::chrono::nanoseconds age) {
  return fmt::format("{} held by {} for {} ms",
                     leases == 1 ? std::string("a lease is out,")
                                 : fmt::format("{} leases are out, the oldest is", leases),
                     holder, std::chrono::duration_cast<std::chrono::milliseconds>(age).count());
}

LeaseBook::LeaseBook(Watcher watcher) : state_(std::make_shared<State>()) {
  state_->watcher = std::move(watcher);
}

LeaseBook::~LeaseBook() {
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  if (state_->watcher && !state_->entries.empty()) state_->watcher(0, nullptr);
  state_->watcher = nullptr;  // the watcher's own memory goes too
}

Lease LeaseBook::lend(std::string holder) {
  const std::lock_guard lock(state_->mutex);
  state_->entries.push_back({std::move(holder), Clock::now()});
  state_->changed();
  return Lease(state_, std::prev(state_->entries.end()));
}

std::size_t LeaseBook::size() const {
  const std::lock_guard lock(state_->mutex);
  return state_->entries.size();
}

std::optional<LeaseBook::Entry> LeaseBook::oldest() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->entries.empty()) return std::nullopt;
  return state_->entries.front();
}

std::string LeaseBook::describe() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->entries.empty()) return "no lease is out";
  const Entry& oldest = state_->entries.front();
  return describe_leases(state_->entries.size(), oldest.holder, Clock::now() - oldest.since);
}

bool LeaseBook::wait_until_back(Clock::time_point deadline) const {
  // Rarely called, so polling is good enough.
  while (size() > 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

Lease::Lease(Lease&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)), entry_(other.entry_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  Lease moved(std::move(other));
  std::swap(state_, moved.state_);
  std::swap(entry_, moved.entry_);
  return *this;
}

Lease::~Lease() {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->entries.erase(entry_);
  state_->changed();
}

bool Lease::stands() const {
  if (!state_) return false;
  const std::lock_guard lock(state_->mutex);
  return !state_->closed;
}

RoutesView::RoutesView(ModelShape shape, TokenRange range, std::vector<const std::byte*> rows,
                       std::vector<RowState> states, Lease lease) {
  const auto size = static_cast<std::size_t>(range.size());
  if (rows.size() != size || states.size() != size) {
    throw ArgumentError(
        fmt::format("{} rows and {} states for the positions [{}, {}): give {} of each",
                    rows.size(), states.size(), range.start, range.end, size));
  }
  std::vector<std::byte> no_row(shape.row_bytes(), std::byte{0xFF});
  loan_.emplace(Loan{std::move(shape), range, std::move(rows), std::move(states), std::move(no_row),
                     std::move(lease)});
}

std::span<const RowState> RoutesView::states() const {
  if (owned_) return owned_->states();
  return loan_->states;
}

void RoutesView::require_lender() const {
  if (loan_->lease.stands()) return;
  throw StateError(fmt::format(
      "the rows [{}, {}) were lent by a reader that is gone; detach() views before it goes",
      loan_->range.start, loan_->range.end));
}

std::span<const std::byte> RoutesView::row(std::int64_t position) const {
  if (owned_) return owned_->row(position);
  require_lender();
  const TokenRange range = loan_->range;
  if (position < range.start || position >= range.end) {
    throw RangeError(
        fmt::format("position {} is outside the rows' [{}, {})", position, range.start, range.end));
  }
  const std::byte* row = loan_->rows[static_cast<std::size_t>(position - range.start)];
  return {row != nullptr ? row : loan_->no_row.data(), loan_->no_row.size()};
}

Routes RoutesView::detach() && {
  if (!owned_) {
    require_lender();
    owned_.emplace(loan_->shape, loan_->range, Routes::Unset());
    std::byte* to = owned_->bytes().data();
    for (const std::byte* from : loan_->rows) {
      const std::byte* row = from != nullptr ? from : loan_->no_row.data();
      to = std::copy_n(row, loan_->no_row.size(), to);
    }
    std::ranges::copy(loan_->states, owned_->states().begin());
    loan_.reset();
  }
  return std::move(*owned_);
}

}  // namespace moetap
