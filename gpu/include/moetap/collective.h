// Under sequence parallelism each tensor-parallel rank's router sees a part of the tokens. The
// classes here gather the parts before capture, so that every rank captures all tokens.
#pragma once

#include <moetap/device.h>
#include <moetap/device_fault.h>
#include <moetap/export.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moetap {

// One rank's connection to the ranks that gather together. Every rank must make the same calls with
// the same counts in the same order, from one thread and on one stream at a time.
//
// A gather fails if a rank died or is late, or if the library reports an error. Elements that did
// not arrive then keep their old values, and every later gather does nothing. Each later call
// throws the reason: TimeoutError, MismatchError or CollectiveError. There is no recovery: the
// ranks have to be restarted. The object must outlive its queued work and the graphs that contain
// it.
class MOETAP_API Collective {
 public:
  virtual ~Collective() = default;

  virtual int size() const = 0;
  virtual int rank() const = 0;

  // Queues a gather on `stream`. `to` receives all ranks' elements, rank after rank, counts[r] from
  // rank r; `from` has this rank's counts[rank()] elements. Both are device memory; counts may be
  // 0. The gather fails if it is not done within the timeout after the stream has reached it.
  virtual void gather(const std::int32_t* from, std::int32_t* to,
                      std::span<const std::int64_t> counts, Stream& stream) = 0;

  // Call it after each launch on `stream` of a graph that contains gathers: the timeout applies to
  // them too. The timeout starts at this call, or at the end of earlier gathers and launches if
  // that is later. So it must cover other work that was queued after those, and the graph itself.
  virtual void launched(Stream& stream) = 0;

  // Throws if a gather has failed. Cheap; call it when a step has failed, to learn the reason.
  virtual void check() = 0;
};

// Whether work queued on the stream is now recorded into a graph. For implementations of gathers
// and of other calls that a graph cannot contain.
MOETAP_API bool records_graph(Stream& stream);

// Gathers the parts of one layer's topk_ids in token order. It converts them to int32 and drops
// shared-expert columns and padding rows. One object serves any number of layers and steps in turn,
// on one stream. Results that are needed at the same time need separate objects.
class MOETAP_API PartGather {
 public:
  // max_tokens: of all parts together. `weights`: the shape's weight type; weights are gathered
  // together with the ids. ArgumentError for sizes below 1 (shared_expert_columns: below 0).
  PartGather(Device& device, Collective& ranks, int top_k, std::int64_t max_tokens,
             int shared_expert_columns = 0, WeightType weights = WeightType::none);

  // part_tokens[r]: the number of the step's tokens, including padded ones, that rank r's router
  // has seen; the first rank's tokens come first. `part`: this rank's picks, in device memory. Rows
  // after part_tokens[rank] are padding and are dropped, as are declared columns after the first
  // top_k. Returns the picks of all tokens, for Capturer::capture() on the same stream: int32,
  // sum(part_tokens) rows, top_k columns (so CapturerOptions::shared_expert_columns is 0), at an
  // address that never changes. Weights are returned as float32. bfloat16 weights keep their value,
  // and capture() converts them back exactly.
  //
  // The step fails for an id that does not fit int32, and for elements that do not arrive from
  // another rank (kNotGathered): both become invalid ids. ArgumentError for counts or sizes that do
  // not match, RangeError for more than max_tokens, and the exceptions of Collective; nothing is
  // queued then. In a graph, part_tokens are fixed, like the graph's padded token count.
  TopkIds gather(const TopkIds& part, std::span<const std::int64_t> part_tokens, Stream& stream);

 private:
  void check(const TopkIds& part, std::span<const std::int64_t> part_tokens) const;
  void pack(const TopkIds& part, std::int64_t rows, Stream& stream);

  Collective& ranks_;
  int top_k_;
  WeightType weights_;
  int width_;  // int32 elements per row: ids, and as many weights if any
  int shared_expert_columns_;
  std::int64_t max_tokens_;
  Buffer part_;   // int32 [max_tokens][width_]
  Buffer whole_;  // the same
  std::vector<std::int64_t> counts_;
};

}  // namespace moetap
