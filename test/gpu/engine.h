// The worker's side of a scenario: a pretended engine with a Capturer, its model and its graphs.
#pragma once

#include <moetap/capturer.h>
#include <moetap/device.h>

#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "test/gpu/scenario.h"

namespace moetap::test {

struct EngineOptions {
  IdType type = IdType::int32;
  int shared_expert_columns = 0;
  int stride_padding = 0;
  bool wide_weights = false;  // float32 ones, whatever rows hold
};

class Engine {
 public:
  Engine(Device& device, const Scenario& scenario, std::unique_ptr<Transport> transport,
         EngineOptions options);

  // Runs one step as an engine does: nothing in it waits for the device.
  void run(const ScenarioStep& step) {
    begin(step);
    publish(step);
  }
  void begin(const ScenarioStep& step);  // up to publish(), which may be repeated if it throws
  void publish(const ScenarioStep& step);
  // Waits until the last one is visible.
  void finish(Milliseconds timeout = Milliseconds(20'000));

  void end_request(RequestId request, RequestEnd how) { capturer_.end_request(request, how); }

  Stream& stream() { return *stream_; }
  const Slot* slot_mapping() const { return slot_mapping_.as<const Slot>(); }
  Capturer& capturer() { return capturer_; }
  // Whose failure was taken; one that comes twice is a failure of the test.
  const std::set<Step>& failed() const { return failed_; }

 private:
  void capture(const ScenarioStep& step);
  void capture_layers(std::int64_t rows, int count);
  std::unique_ptr<Graph> record_graph(int layers);
  void spoil(const ScenarioStep& step);
  void queue_slots(const ScenarioStep& step);
  void take_failures();

  Device& device_;
  const Scenario& scenario_;
  EngineOptions options_;
  std::unique_ptr<Stream> stream_;
  Model model_;
  Capturer capturer_;
  Buffer slot_mapping_;        // one for all steps, as engines have it
  std::deque<Buffer> pinned_;  // sources of copies, which must live until those are done
  std::unique_ptr<Graph> graph_;
  std::unique_ptr<Graph> graph_without_last_layer_;
  std::set<Step> failed_;
  Step last_ = 0;
};

}  // namespace moetap::test
