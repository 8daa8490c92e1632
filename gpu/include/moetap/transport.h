// The worker's end of a transport, one class for each.
#pragma once

#include <moetap/error.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>
#include <moetap/types.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace moetap {

struct RouteSink;  // of a router that captures its own picks: <moetap/route_sink.h>
class Stream;      // a device's queue of ordered work: <moetap/device.h>

// The worker's end. One thread at a time. The Capturer has already checked its arguments against
// shape() and max_tokens(), and calls in the order begin_step, capture …, and then one of publish,
// skip_step and give_up.
class CaptureTransport {
 public:
  virtual ~CaptureTransport() = default;

  virtual const ModelShape& shape() const = 0;
  virtual std::int64_t max_tokens() const = 0;  // rows of the device cache

  // Compares all picks of a row from now on, also on a host: CapturerOptions::compare_all_picks.
  virtual void compare_all_picks() = 0;

  // Puts the step's number, token count and first row of topk_ids (`dp_row`: where this rank's rows
  // start in a concatenated layout) into device memory, in order on `stream` and after all that the
  // steps before queued on theirs. TimeoutError if the scheduler cannot be told that the step
  // before was given up.
  virtual void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) = 0;

  // Queues the copy of one layer's picks into the device cache. `layer` is an index into the row.
  // `first_row` >= 0 is fixed now (and so frozen in a graph); kRowFromStep reads begin_step's
  // `dp_row` from device memory when the copy runs. Allowed while `stream` records a graph.
  static constexpr std::int64_t kRowFromStep = -1;
  virtual void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
                       Stream& stream) = 0;

  // Two other ways for a layer's picks to come into the device cache, at addresses that are fixed
  // and so can be frozen into graphs: written by the engine's own router (its rows of topk_ids are
  // this rank's from first_row to end_row, its picks behind the first top_k are `shared_columns` of
  // shared experts), or as the output of a kernel that knows nothing of us.
  static constexpr std::int64_t kAllRows = std::numeric_limits<std::int64_t>::max();
  virtual void route_sink(int layer, std::int64_t first_row, std::int64_t end_row,
                          int shared_columns, RouteSink& sink) = 0;
  virtual RouteOutput route_output(int layer) = 0;

  // Ends the step: its rows go to the slots in `slot_mapping` (device memory, num_tokens long; may
  // be overwritten by work queued on `stream` after this call). A step whose layers were not all
  // captured, or that has an id or slot out of range or an expert twice in a row, has failed: its
  // rows are missing, the reader is told, and take_failures() has it. A TimeoutError (the scheduler
  // does not keep up) changes nothing: the call may be repeated.
  virtual void publish(const Slot* slot_mapping, Stream& stream) = 0;

  // Ends a step of which nothing is wanted.
  virtual void skip_step(Stream& stream) = 0;

  // Ends the step without its rows: it has failed, and the reader is told. `slot_mapping` as in a
  // publish() that could not be done, or null if it did not come to that. May block as publish()
  // does where that waits for a lock or a device, but never waits for room in a ring.
  virtual void give_up(const Slot* slot_mapping, Stream& stream) noexcept = 0;

  // The failures that were found since the last call, in that order, and how many there were ever.
  // More than 64 are not kept, the latest are. Allocates only if there are any.
  virtual std::vector<StepFailed> take_failures() = 0;
  virtual std::uint64_t num_failed() const = 0;

  // Returns when every step up to `step` that was published or given up is visible to the reader.
  // TimeoutError.
  virtual void finalize(Step step, Milliseconds limit) = 0;

  // See OnFull::drop.
  virtual DroppedSteps dropped() const { return {}; }

  // The engine no longer runs this request. Matters only where rows are kept per request; one that
  // finished without that a published step wanted a token of it hands over nothing.
  virtual void end_request(std::uint64_t request, RequestEnd how) = 0;
};

}  // namespace moetap
