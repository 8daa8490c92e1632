// The worker's rows by request and position, for HostCache::per_request.
#pragma once

#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace moetap {

// Positions without a put() are missing. A request's memory grows geometrically and is freed with
// the request. One thread at a time.
class RequestCache {
 public:
  explicit RequestCache(std::size_t row_bytes) : row_bytes_(row_bytes) {}

  // Stores the rows of positions [position, position + slots.size()). They replace earlier rows:
  // after a rejected speculative token its position is computed again (H17). As in a StepRecord, a
  // row whose slot is stored as ~slot is missing.
  void put(std::uint64_t request, std::int64_t position, std::span<const std::byte> rows,
           std::span<const Slot> slots);

  // The forward pass over these positions failed: their rows are missing from now on.
  void lose(std::uint64_t request, std::int64_t position, std::int64_t count);

  // Whether any row was put or lost there, also before clear().
  bool has(std::uint64_t request) const { return requests_.contains(request); }
  void clear(std::uint64_t request);
  void erase(std::uint64_t request) { requests_.erase(request); }

  // The positions from the lowest one that was put; empty for a request without rows.
  struct Rows {
    std::int64_t position = 0;
    std::span<const RowState> states;
    std::span<const std::byte> rows;
  };
  Rows rows(std::uint64_t request) const;

  std::size_t size() const { return requests_.size(); }

 private:
  struct Request {
    std::int64_t position = 0;  // of the first row: a prefix hit takes no memory
    std::vector<RowState> states;
    std::vector<std::byte> rows;
  };

  // The request, with room for these positions, and the index of the first one.
  std::pair<Request&, std::size_t> reserve(std::uint64_t request, std::int64_t position,
                                           std::size_t count);

  std::size_t row_bytes_;
  std::unordered_map<std::uint64_t, Request> requests_;
};

}  // namespace moetap
