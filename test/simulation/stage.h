// One pipeline stage of a simulated worker: a pretended model, and a real Capturer and transport on
// the seeded device. It makes mistakes, and tells the oracle what must come of them.
#pragma once

#include <moetap/capturer.h>
#include <moetap/endpoint.h>
#include <moetap/host_device.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "test/simulation/counts.h"
#include "test/simulation/dice.h"
#include "test/simulation/trace.h"
#include "test/simulation/worker.h"

namespace moetap::simulation {

struct StageOptions {
  Endpoint endpoint;
  int number = 0;            // of the stage
  int first_layer = 0;       // of the model's, by index
  bool shm = false;          // else the device transport
  bool per_request = false;  // its host cache
  Drafts drafts = Drafts::tree;
  int staging_depth = 1;
  OnFull on_full = OnFull::wait;
  CapturerOptions capturer{};
  IdType type = IdType::int32;
  int stride_padding = 0;
  bool graphs = false;
  bool gives_up = false;  // steps that it cannot publish

  // All that the engine and its model are free to choose.
  void draw(Dice& dice, bool misses_routes);
};

class Stage {
 public:
  static constexpr std::int64_t kMaxTokens = 40;

  Stage(StageOptions options, SeededDevice& device, Oracle& oracle, Dice& dice, Counts& counts,
        History& history, Trace& trace);

  // As Worker::run, for the layers of this stage.
  bool run(const StepWork& step);
  void accept(Step step, RequestId request, std::int64_t num_tokens,
              std::span<const std::int64_t> accepted);
  void end_request(RequestId request, RequestEnd how);
  // Lets a worker that keeps rows by request get on with it.
  void go_on();
  // Holds the stage's stream back, or lets it go.
  void hold(bool held) { device_.hold(*stream_, held); }
  // Everything was published: every failure must be told by now. False: some of it is on its way.
  bool finish();

 private:
  enum class Trouble {
    none,
    layer_missing,
    layer_twice,
    bad_id,
    repeated_id,
    bad_slot,
    graph_too_small,
    thrown,             // the forward pass throws half-way
    published_in_vain,  // the ring was full, and the engine gives the step up
  };

  // How the open step looks.
  struct Open {
    // For clang 14, which asks for a default constructor before it has read the initializers.
    Open() {}

    Step step = 0;
    Trouble trouble = Trouble::none;
    bool graph = false;
    std::int64_t padded = 0;       // rows a rank
    std::vector<std::int64_t> dp;  // tokens of each rank
    std::size_t spoiled = 0;       // the token that is in trouble
    std::int64_t wanted = 0;       // tokens
    Json traced{};                 // of the step, so far
    std::optional<StepGuard> guard{};
  };

  // Whether anybody hears of the open step's trouble.
  bool fails() const { return open_->trouble != Trouble::none && open_->wanted > 0; }
  int layers() const { return options_.endpoint.shape.num_layers(); }
  int dp_size() const { return options_.capturer.dp_size; }
  RankLayout layout() const { return options_.capturer.layout; }

  void record_graphs();
  std::unique_ptr<Graph> record_graph(int without);
  void draw_step(const StepWork& work);
  bool can_be(Trouble trouble, std::int64_t tokens) const;
  void begin(const StepWork& work);
  void make_picks(const StepWork& work);
  void write_row(std::int64_t row, std::uint32_t number);
  void write(int layer, std::int64_t row, int column, std::int64_t id);
  void copy_in(const Buffer& to, const void* from, std::size_t bytes);
  std::int64_t first_row(int rank) const;
  std::int64_t rows() const;
  TopkIds topk_ids(int layer, std::int64_t rows) const;
  void capture();
  void capture_layers(std::int64_t rows, int without);
  void spoil_pick();
  void throw_in_step();
  void ask_for_trouble(const StepWork& work);
  void ask_for_trouble_in_step();
  bool publish();
  void take_failures();
  void tell(const StepWork& work);
  void note_options();
  void note_begin(const StepInfo& info);
  void note_capture(int layer, std::int64_t rows);
  void note_launch(bool lacks_layer);
  void note_end(bool dropped);
  void tell_dropped(const StepWork& work);

  StageOptions options_;
  SeededDevice& device_;
  Oracle& oracle_;
  Dice& dice_;
  Counts& counts_;
  History& history_;
  Trace& trace_;
  std::int64_t most_rows_;  // of topk_ids
  int columns_;
  std::int64_t stride_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> picks_;  // [layer][row][stride]; what a step does not write stays
  Buffer device_picks_, device_slots_;
  std::deque<Buffer> sources_;  // of copies, which must live until those are done
  Capturer capturer_;
  std::int64_t graph_tokens_;
  std::unique_ptr<Graph> graph_, graph_without_a_layer_;
  int lacking_ = -1;  // the layer that the second lacks, by index
  std::optional<Open> open_;
  Step last_ = 0;
  std::uint64_t dropped_ = 0;  // steps so far
  std::set<Step> untold_;      // that failed, without this end having heard of it
};

}  // namespace moetap::simulation
