// The worker's rows by request and position, for HostCache::per_request.
#pragma once

#include <moetap/drafts.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpu/internal/wanted_tokens.h"
#include "lib/internal/marked_slot.h"

namespace moetap {

// Positions without a put() are missing. A request's memory grows geometrically and is freed with
// the request. One thread at a time.
//
// Where drafts may form a tree, declared drafts are kept apart until accept() says which were
// accepted (H30). Tokens of a span without declared drafts are taken to follow each other, unless
// the next span begins below their end. Then only the first token is known to be accepted.
class RequestCache {
 public:
  RequestCache(std::size_t row_bytes, Drafts drafts) : row_bytes_(row_bytes), drafts_(drafts) {}

  // Stores the rows of a span's wanted tokens. They replace earlier rows: after a rejected
  // speculative token its position is computed again (H17). As in a StepRecord, a row whose slot is
  // marked is missing.
  void put(Step step, const WantedSpan& wanted, std::span<const std::byte> rows,
           std::span<const MarkedSlot> slots);

  // The forward pass over these positions failed: their rows are missing from now on.
  void lose(Step step, const RequestSpan& span);

  // For the request's span in `step` that begins at `position`: its token accepted[i] was accepted
  // for its i-th position. Other drafts of steps up to this one have no rows.
  void accept(Step step, RequestId request, std::int64_t position,
              std::span<const std::int64_t> accepted);

  // Whether any row was put or lost there, also before clear().
  bool has(RequestId request) const { return requests_.contains(request); }
  void clear(RequestId request);
  void erase(RequestId request) { requests_.erase(request); }

  // The positions from the lowest one that was put; empty for a request without rows.
  struct Rows {
    std::int64_t position = 0;
    std::span<const RowState> states;
    std::span<const std::byte> rows;
    std::int64_t doubtful = 0;  // from this position on there are no rows, unless all were accepted
  };
  Rows rows(RequestId request) const;

  std::size_t size() const { return requests_.size(); }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  // Declared drafts, until accept().
  struct Drafted {
    Step step = 0;
    std::int64_t position = 0;  // of the span's first token
    std::int64_t first = 0;     // the span's token that `rows` begin with
    std::int64_t end = kNone;   // where the next span begins
    std::vector<RowState> states;
    std::vector<std::byte> rows;
  };
  struct Request {
    std::int64_t position = 0;  // of the first row: a prefix hit takes no memory
    std::vector<RowState> states;
    std::vector<std::byte> rows;
    std::vector<Drafted> drafted;
    // The last span: its step, where it begins, and from where on its tokens may be alternatives.
    Step step = 0;
    std::int64_t begin = 0;
    std::int64_t doubtful = kNone;

    std::int64_t end() const { return position + static_cast<std::int64_t>(states.size()); }
  };

  // A span begins. That may show that tokens of the previous one were rejected.
  void begin(Request& kept, Step step, const RequestSpan& span) const;
  // Makes room for these positions; the index of the first one.
  std::size_t reserve(Request& kept, std::int64_t position, std::size_t count) const;

  std::size_t row_bytes_;
  Drafts drafts_;
  std::unordered_map<RequestId, Request> requests_;
};

}  // namespace moetap
