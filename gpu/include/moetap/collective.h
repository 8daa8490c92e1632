// Under sequence parallelism each tensor-parallel rank's router sees a part of the tokens. Here the
// parts come together before they are captured, so that every rank captures all of them.
#pragma once

#include <moetap/device.h>
#include <moetap/device_fault.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moetap {

// The ranks that gather together, as one of them sees them. Every rank makes the same calls with
// the same counts in the same order, from one thread and on one stream at a time.
//
// When a gather fails (a rank died or is late, the library reports an error), what did not come is
// left as it was, every later gather does nothing, and each call throws the reason: TimeoutError,
// MismatchError or CollectiveError. Nothing mends it: the ranks have to start again. It must
// outlive the work and the graphs that it queued.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int size() const = 0;
  virtual int rank() const = 0;

  // Queues on `stream`: `to` becomes the ranks' elements, rank after rank, counts[r] of rank r;
  // `from` are counts[rank()] of this one. Device memory; 0 elements are allowed. A gather that is
  // not done within the time limit from when the stream came to it has failed.
  virtual void gather(const std::int32_t* from, std::int32_t* to,
                      std::span<const std::int64_t> counts, Stream& stream) = 0;

  // For a graph that holds gathers, after each launch of it on `stream`: these are held to the time
  // limit too. It runs from this call or from the end of the gathers and launches before it, if
  // that is later, and so must cover other work that was queued behind those, and the graph itself.
  virtual void launched(Stream& stream) = 0;

  // Throws if a gather has failed. Cheap; call it when a step has failed, to know why.
  virtual void check() = 0;
};

// Whether work queued on the stream is recorded into a graph now. For those who implement gathers
// and other calls that a graph cannot hold.
bool records_graph(Stream& stream);

// Puts the parts of one layer's topk_ids together, in token order: converts them to int32, drops
// shared-expert columns and padding rows. One object serves any number of layers and steps in turn,
// on one stream; results that must be there at the same time need an object each.
class PartGather {
 public:
  // max_tokens: of all parts together. `weights`: the shape's, gathered with the ids in one go.
  // ArgumentError for sizes below 1 (columns: 0).
  PartGather(Device& device, Collective& ranks, int top_k, std::int64_t max_tokens,
             int shared_expert_columns = 0, WeightType weights = WeightType::none);

  // part_tokens[r]: how many of the step's tokens, padded ones among them, the router of rank r has
  // seen; the first rank's tokens come first. `part`: this rank's picks, in device memory; rows
  // behind part_tokens[rank] are padding and dropped, and so may be columns behind the first top_k
  // if they are declared. Returns all tokens' picks, for Capturer::capture() on the same stream:
  // sum(part_tokens) rows of int32, top_k columns (CapturerOptions::shared_expert_columns is 0), at
  // an address that never changes. Weights come beside them as float32, from bfloat16 ones too: of
  // the same value, which capture() makes the same bfloat16 again.
  //
  // An id that no int32 can hold becomes one that is no expert's, and so does what does not come
  // from another rank (kNotGathered): the step fails. ArgumentError for counts or sizes that do not
  // fit, RangeError for more than max_tokens, and whatever Collective throws; nothing is queued
  // then. In a graph, part_tokens are as fixed as the graph's padded token count.
  TopkIds gather(const TopkIds& part, std::span<const std::int64_t> part_tokens, Stream& stream);

 private:
  void check(const TopkIds& part, std::span<const std::int64_t> part_tokens) const;
  void pack(const TopkIds& part, std::int64_t rows, Stream& stream);

  Collective& ranks_;
  int top_k_;
  WeightType weights_;
  int width_;  // int32 of a row: ids, and as many weights
  int shared_expert_columns_;
  std::int64_t max_tokens_;
  Buffer part_;   // int32 [max_tokens][width_]
  Buffer whole_;  // the same
  std::vector<std::int64_t> counts_;
};

}  // namespace moetap
