// One rank of a pretended engine: a process among others that MPI connects.
#pragma once

#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/mpi_collective.h>
#include <moetap/topk_ids.h>

#include <deque>
#include <memory>
#include <vector>

#include "test/ranks/plan.h"

namespace moetap::test {

class Rank {
 public:
  // tp_ranks: those of this rank's data-parallel rank and stage.
  Rank(const Plan& plan, const Topology& topology, Device& device, MPI_Comm tp_ranks);

  // One forward pass and its publish(). The StepFailed of any step, and what a gather throws.
  void run(Step step);
  void finish(Step last) {
    stream_->synchronize();
    capturer_.finalize(last, Milliseconds(60'000));
  }

  Collective& ranks() { return *ranks_; }

 private:
  static constexpr int kShared = 1;  // columns of shared experts
  static constexpr std::int64_t kStride = 7;

  std::int64_t max_rows() const { return Plan::kPadded * plan_.dp; }
  int num_layers() const { return shape_.num_layers(); }
  // The tokens whose picks this rank's router leaves in topk_ids, by row; -1 for padding.
  std::vector<std::int64_t> router_rows(Step step) const;
  TopkIds topk_ids(int layer, std::int64_t rows) const;
  TopkIds whole(int layer, Step step);
  std::vector<std::int64_t> agreed_parts(Step step) const;

  void route(Step step);
  void route_weights(Step step);
  void queue_slots(Step step);
  void capture_layers(const std::vector<TopkIds>& ids);
  void record_graph();
  TokenRange own_part(Step step) const;
  std::int64_t num_tokens(Step step) const;

  const Plan& plan_;
  Topology topology_;
  ModelShape shape_;  // of the stage
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Buffer ids_;      // int64 [layer][row][kStride]
  Buffer weights_;  // the same, of the shape's type
  Buffer slots_;    // of the step
  std::deque<Buffer> uploads_;
  std::unique_ptr<Collective> ranks_;
  std::deque<PartGather> gathers_;  // one a layer
  Capturer capturer_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace moetap::test
