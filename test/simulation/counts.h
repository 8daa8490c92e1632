// How often each thing happened, so that a test can tell that all of it did.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace moetap::simulation {

enum class Event : std::uint8_t {
  // rows that were read, and what they were
  present,
  missing,
  stale,
  clobbered,
  // requests
  prefix_hits,
  preemptions,
  aborts,
  finished,
  finished_preempted,
  kept,
  sampled_late,
  rejected,
  corrected,
  misreported,
  guessed_again,
  guessed_low,
  uncovered,
  tree_moves,
  continued,
  appended,
  // blocks
  moves,
  rows_moved,
  copies,
  flushes,
  forgotten,
  fills,
  stored,
  loaded,
  taken_early,
  held_back,
  views,
  detached,
  // steps
  steps,
  unpublished,
  failed_steps,
  layers_missing,
  layers_twice,
  bad_ids,
  repeated_ids,
  bad_slots,
  graphs_too_small,
  thrown,
  published_in_vain,
  graphs,
  full_rings,
  streams_held,
  refused_calls,
  missing_routes,
  // readers
  workers_of_stages,
  waits_in_vain,
  failures_told,
  taken_by_request,
  dropped_steps,
  waits_with_limit,
};
inline constexpr std::string_view kEventNames[] = {"rows present",
                                                   "rows missing",
                                                   "rows stale",
                                                   "rows clobbered",
                                                   "prefix hits",
                                                   "preemptions",
                                                   "aborts",
                                                   "finished",
                                                   "finished early",
                                                   "runs kept",
                                                   "tokens sampled late",
                                                   "drafts rejected",
                                                   "steps corrected",
                                                   "steps misreported",
                                                   "steps guessed again",
                                                   "guesses too low",
                                                   "rows uncovered",
                                                   "tree moves",
                                                   "continued elsewhere",
                                                   "results joined",
                                                   "block moves",
                                                   "rows moved",
                                                   "blocks copied",
                                                   "flushes",
                                                   "blocks forgotten",
                                                   "fills",
                                                   "blocks stored",
                                                   "blocks loaded",
                                                   "rows taken early",
                                                   "blocks held back",
                                                   "views",
                                                   "views detached",
                                                   "steps",
                                                   "steps unpublished",
                                                   "steps failed",
                                                   "layers missing",
                                                   "layers twice",
                                                   "bad ids",
                                                   "repeated ids",
                                                   "bad slots",
                                                   "small graphs",
                                                   "steps that threw",
                                                   "published in vain",
                                                   "graphs",
                                                   "full rings",
                                                   "streams held",
                                                   "calls refused",
                                                   "missing routes",
                                                   "workers of stages",
                                                   "waits in vain",
                                                   "failures told",
                                                   "requests taken",
                                                   "steps dropped",
                                                   "waits with a timeout"};
inline constexpr std::size_t kEvents = std::size(kEventNames);
static_assert(static_cast<std::size_t>(Event::waits_with_limit) + 1 == kEvents);

class Counts {
 public:
  std::int64_t& operator[](Event event) { return counts_[static_cast<std::size_t>(event)]; }
  std::int64_t operator[](Event event) const { return counts_[static_cast<std::size_t>(event)]; }
  bool operator==(const Counts&) const = default;

 private:
  std::array<std::int64_t, kEvents> counts_{};
};

}  // namespace moetap::simulation
