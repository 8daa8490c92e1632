#include "gpu/transport/request_cache.h"

#include <algorithm>

namespace moetap {

std::pair<RequestCache::Request&, std::size_t> RequestCache::reserve(std::uint64_t request,
                                                                     std::int64_t position,
                                                                     std::size_t count) {
  Request& kept = requests_[request];
  if (kept.states.empty()) kept.position = position;
  if (position < kept.position) {
    const auto before = static_cast<std::size_t>(kept.position - position);
    kept.states.insert(kept.states.begin(), before, RowState::missing);
    kept.rows.insert(kept.rows.begin(), before * row_bytes_, std::byte{0xFF});
    kept.position = position;
  }
  const auto first = static_cast<std::size_t>(position - kept.position);
  if (first + count > kept.states.size()) {
    kept.states.resize(first + count, RowState::missing);
    kept.rows.resize((first + count) * row_bytes_, std::byte{0xFF});
  }
  return {kept, first};
}

void RequestCache::put(std::uint64_t request, std::int64_t position,
                       std::span<const std::byte> rows, std::span<const Slot> slots) {
  const auto [kept, first] = reserve(request, position, slots.size());
  std::ranges::copy(rows, kept.rows.begin() + static_cast<std::ptrdiff_t>(first * row_bytes_));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    kept.states[first + i] = slots[i] < 0 ? RowState::missing : RowState::present;
  }
}

void RequestCache::lose(std::uint64_t request, std::int64_t position, std::int64_t count) {
  const auto [kept, first] = reserve(request, position, static_cast<std::size_t>(count));
  std::fill_n(kept.states.begin() + static_cast<std::ptrdiff_t>(first), count, RowState::missing);
}

void RequestCache::clear(std::uint64_t request) {
  const auto found = requests_.find(request);
  if (found != requests_.end()) found->second = {};
}

RequestCache::Rows RequestCache::rows(std::uint64_t request) const {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return {};
  const Request& kept = found->second;
  return {kept.position, kept.states, kept.rows};
}

}  // namespace moetap
