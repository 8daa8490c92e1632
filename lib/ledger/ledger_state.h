// The inside of a Ledger: its requests, and what its parts (requests, drafts, moves, plans) share.
#pragma once

#include <moetap/ledger.h>

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/internal/export.h"
#include "lib/ledger/block_book.h"

namespace moetap {

struct MOETAP_HIDDEN Ledger::State {
  using Claims = std::pmr::vector<detail::BlockClaim>;

  // Steps of a request. More than any pipeline has. An engine that never calls accept() has no more
  // either.
  static constexpr std::size_t kMostInFlight = 64;

  struct Request {
    explicit Request(std::pmr::memory_resource* memory)
        : claims(memory), origins(memory), covered(memory), in_flight(memory) {}

    // The step that computed a row which was moved before its token was known to be accepted.
    struct Origin {
      std::int64_t position = 0;
      Step step = 0;
    };

    // A row under that of a later step in flight, which may begin elsewhere than reported. If it
    // does, this row is the position's again.
    struct Covered {
      std::int64_t position = 0;
      detail::RowStamp stamp;
    };

    // What the request had before one of its steps was first reported.
    struct Before {
      Step step = 0;  // its previous one
      std::int64_t computed = 0;
    };

    // A step with drafts, or one after it, until accept() says which were accepted. It may be
    // reported again.
    struct InFlight {
      Step step = 0;
      TokenRange positions;
      Before before;
      std::int64_t drafts = 0;  // positions from here on are drafts
      bool goes_back = false;   // begins before what was computed
      bool prefill = false;     // continues with known tokens
      bool guessed = false;     // not yet confirmed that it begins there
      bool has_drafts() const { return drafts < positions.end; }
    };

    Claims claims;  // in order of the positions; none if rows are not wanted
    std::pmr::vector<Origin> origins;
    std::pmr::vector<Covered> covered;
    std::pmr::vector<InFlight> in_flight;
    Step forgotten = 0;         // steps up to this one are no longer in `in_flight`
    std::int64_t computed = 0;  // positions below were scheduled, hit, or sampled from
    std::int64_t num_tokens = 0;
    std::int64_t start = 0;
    std::int64_t placed = 0;  // tokens when it started or resumed
    std::int64_t kept = 0;    // preempt_keeping() returned the rows below to its caller
    std::int64_t unkept = 0;  // rows from `kept` to here are of such a run and were not read
    Step last = 0;            // the newest step that computes positions of it
    Before before_last;
    Step accepted_in = 0;   // the newest step of this run that accept() was called for
    Step preempted_in = 0;  // steps up to this one are of an earlier run
    Step kept_in = 0;       // steps up to this one are of a kept run, or an earlier one
    bool wants_rows = true;
    bool preempted = false;
  };

  State(std::int64_t num_blocks, int block_size, Drafts of_drafts)
      : book(num_blocks, block_size), drafts(of_drafts), requests(&pool) {}

  const Request& find(RequestId request) const;
  Request& find(RequestId request) {
    return const_cast<Request&>(std::as_const(*this).find(request));
  }
  // A request that is not preempted.
  Request& running(RequestId request, const char* call);
  void erase(RequestId request);
  void preempt(Request& request);
  void place(Request& request, const Placement& placement);
  void check_placement(const Placement& placement) const;
  // The rows that a request is given are those of tokens that it is known to have.
  static void check_known(const Request& request, RequestId id, TokenRange positions,
                          const char* call);

  void check_step(Step step, const char* call) const;
  // For the step number of rows that are put.
  void check_own_step(Step step, const char* call) const;
  void check_positions(TokenRange positions, std::size_t blocks) const;
  void check_writable(const Request& request, TokenRange positions, Step step) const;

  void keep_origins(Request& request, std::size_t index) const;
  static void forget_origins(Request& request, TokenRange positions);
  void reject(Request& request, Step step);
  static std::int64_t computed_with(const Request& request);

  static Request::Before before(const Request& request, Step step, TokenRange positions);
  Request::InFlight planned(const Request& request, Step step, TokenRange positions) const;
  static bool has_drafts(const Request& request, Step step);
  static bool ends_in_drafts(const Request& request, const Request::InFlight& flight);
  bool may_be_corrected(const Request& request, const Request::InFlight& flight) const;
  bool is_repeated(const Request& request, const Request::InFlight& flight) const;
  static bool is_known(const Request& request, const Request::InFlight& flight);
  bool is_guess(const Request& request, const Request::InFlight& flight) const;
  void settle_begin(Request& request, Request::InFlight& flight);
  static TokenRange positions_with_rows(const Request& request, const Request::InFlight& flight);
  static const Request::InFlight* in_flight(const Request& request, Step step);
  std::size_t num_rows(const Request& request, TokenRange positions) const;
  void compute(Request& request, const Request::InFlight& flight);
  void reach(const Request& request, const Request::InFlight& flight);
  void cover(Request& request, const Request::InFlight& flight);
  void withdraw(Request& request, Step step);
  static void forget_covered(Request& request, TokenRange positions);
  static void forget_covered_before(Request& request, std::int64_t position);
  bool of_earlier_run(const Request& request, Step step) const {
    return request.preempted || step <= request.preempted_in;
  }
  // Where the step's drafts begin: tokens that became known since are none.
  static std::int64_t first_draft(const Request& request, const Request::InFlight& flight) {
    return std::max(flight.drafts, std::min(flight.positions.end, request.num_tokens));
  }
  static bool computes_again(const Request::InFlight& flight);
  bool stays(const Request::InFlight* flight, std::span<const std::int64_t> accepted) const;
  static std::int64_t count_standing(const Request::InFlight& flight, std::int64_t num_tokens);
  // The request, for an accept() of this step.
  Request& accepting(Step step, RequestId id, std::int64_t num_tokens, const char* call);
  void check_blocks_stay(const Request& request, RequestId id, Step step) const;
  void check_in_place(const Request& request, RequestId id, Step step,
                      std::span<const std::int64_t> accepted) const;
  void stand(Request& request, Step step, std::int64_t num_tokens);

  // A slot in a block that the request owns.
  struct Place {
    BlockId block;
    int offset;
  };
  std::optional<Place> own_place(const Request& request, std::int64_t position) const;
  detail::RowStamp stamp_at(const Place& place) const {
    return book.stamps(place.block)[static_cast<std::size_t>(place.offset)];
  }
  bool is_on_top(const Request& request, std::int64_t position, Step step) const;
  detail::RowStamp row_of(const Request& request, std::int64_t position, Step step) const;
  void set_row_of(Request& request, std::int64_t position, Step step, detail::RowStamp stamp);
  void drop_row_of(Request& request, std::int64_t position, Step step);
  struct Settlement;
  Settlement settle(const Request& request, const Request::InFlight& flight,
                    std::span<const std::int64_t> accepted, Step moved_as) const;
  static void check_later(const Request& request, RequestId id, const Request::InFlight& flight,
                          std::span<const std::int64_t> accepted);
  static void move_up(Request& request, const Request::InFlight& flight, std::int64_t removed);
  void drop_rejected(Request& request, const Request::InFlight& flight,
                     std::span<const std::int64_t> accepted);
  void check_moved_as(const Settlement& settlement) const;

  void check_moves(std::span<const BlockMove> moves);
  MovePlan carry(Step step, std::span<const BlockMove> moves);

  void read_block(RowPlan& plan, const detail::BlockClaim& claim, int first, int end,
                  std::int64_t position) const;
  void judge_block(RowPlan& plan, std::span<const detail::RowStamp> stamps, bool lost,
                   std::int64_t position) const;
  static void miss(RowPlan& plan, TokenRange positions);
  RowPlan plan(RequestId id, const Request& request, TokenRange range) const;
  TokenRange available(const Request& request, std::int64_t start) const;

  // Calls visit(index, first, end) for each block of `positions`, with the block's slots [first,
  // end).
  template <class Visit>
  void for_each_block(TokenRange positions, Visit&& visit) const;

  detail::BlockBook book;
  const Drafts drafts;
  // Reuses the memory of ended requests for new ones.
  std::pmr::unsynchronized_pool_resource pool{std::pmr::pool_options{0, std::size_t{4} << 20}};
  std::pmr::unordered_map<RequestId, Request> requests;
  std::vector<BlockId> checked;  // scratch
  Step last = 0;                 // the newest step that was used
  Step last_put = 0;             // the newest that move(), copy(), fill() or accept() used
  Step last_accept = 0;          // the newest that accept() used
  Step flushed = 0;              // rows of steps up to this one are stale
  std::int64_t wanting = 0;
};

template <class Visit>
void Ledger::State::for_each_block(TokenRange positions, Visit&& visit) const {
  const int size = book.block_size();
  for (std::int64_t position = positions.start; position < positions.end;) {
    const std::int64_t index = position / size;
    const std::int64_t end = std::min(positions.end, (index + 1) * size);
    visit(static_cast<std::size_t>(index), static_cast<int>(position - index * size),
          static_cast<int>(end - index * size));
    position = end;
  }
}

}  // namespace moetap
