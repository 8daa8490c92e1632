#include "test/simulation/stage.h"

#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "gpu/transport/request_transport.h"

namespace moetap::simulation {
namespace {

std::unique_ptr<Transport> make_transport(SeededDevice& device, const StageOptions& options) {
  if (options.shm) return make_shm_transport(device, options.endpoint);
  const DeviceTransportOptions transport{
      .staging_depth = options.staging_depth, .on_full = options.on_full, .drafts = options.drafts};
  if (options.per_request) {
    return make_request_transport(device, options.endpoint, transport, Keeping::in_work);
  }
  return make_device_transport(device, options.endpoint, transport);
}

IdType draw_type(Dice& dice, int num_experts, bool misses_routes) {
  for (;;) {
    const auto type = static_cast<IdType>(dice.draw(4));
    const bool is_signed = type != IdType::uint8 && type != IdType::uint16;
    if (holds_ids(type, num_experts) && (is_signed || !misses_routes)) return type;
  }
}

std::int64_t tokens_of(const StepWork& work) { return std::ssize(work.rows); }

bool is_wanted(const StepWork& work, std::size_t token) {
  const auto index = static_cast<std::int64_t>(token);
  return std::ranges::any_of(work.wanted, [&](const TokenRange& range) {
    return index >= range.start && index < range.end;
  });
}

}  // namespace

void StageOptions::draw(Dice& dice, bool misses_routes) {
  staging_depth = static_cast<int>(1 + dice.draw(2));
  on_full = dice.chance(30) ? OnFull::drop : OnFull::wait;
  capturer.dp_size = static_cast<int>(1 + dice.draw(2));
  capturer.dp_rank = static_cast<int>(dice.draw(capturer.dp_size - 1));
  capturer.layout = static_cast<RankLayout>(dice.draw(2));
  capturer.shared_expert_columns = static_cast<int>(dice.chance(40) ? dice.draw(2) : 0);
  stride_padding = static_cast<int>(dice.chance(40) ? dice.draw(3) : 0);
  type = draw_type(dice, endpoint.shape.num_experts(), misses_routes);
  graphs = dice.chance(70);
  gives_up = dice.chance(40);
}

Stage::Stage(StageOptions options, SeededDevice& device, Oracle& oracle, Dice& dice, Counts& counts,
             History& history, Trace& trace)
    : options_(std::move(options)),
      device_(device),
      oracle_(oracle),
      dice_(dice),
      counts_(counts),
      history_(history),
      trace_(trace),
      most_rows_(kMaxTokens * dp_size()),
      columns_(options_.endpoint.shape.top_k() + options_.capturer.shared_expert_columns),
      stride_(columns_ + options_.stride_padding),
      stream_(device.make_stream()),
      picks_(static_cast<std::size_t>(layers() * most_rows_ * stride_) * id_bytes(options_.type)),
      device_picks_(device.allocate(picks_.size())),
      device_slots_(device.allocate(kMaxTokens * sizeof(Slot))),
      capturer_(make_transport(device, options_), options_.capturer),
      graph_tokens_(4 + dice.draw(8)) {
  for (const int layer : options_.endpoint.shape.moe_layers()) capturer_.bind(layer);
  if (options_.graphs) record_graphs();
  note_options();
}

void Stage::record_graphs() {
  graph_ = record_graph(-1);
  lacking_ = static_cast<int>(dice_.draw(layers() - 1));
  graph_without_a_layer_ = record_graph(lacking_);
}

std::unique_ptr<Graph> Stage::record_graph(int without) {
  const GraphGuard recording(capturer_, graph_tokens_);
  stream_->begin_capture();
  capture_layers(layout() == RankLayout::local ? graph_tokens_ : dp_size() * graph_tokens_,
                 without);
  return stream_->end_capture();
}

bool Stage::run(const StepWork& work) {
  if (last_ == work.step) return true;
  if (!open_) {
    draw_step(work);
    if (dice_.chance(10)) ask_for_trouble(work);
    make_picks(work);
    begin(work);
    if (dice_.chance(10)) ask_for_trouble_in_step();
    if (open_->trouble == Trouble::thrown) {
      throw_in_step();
    } else {
      capture();
    }
  }
  if (open_->trouble != Trouble::thrown && !publish()) return false;
  const std::uint64_t dropped = dropped_;
  tell(work);
  note_end(dropped != dropped_);
  last_ = work.step;
  open_.reset();
  return true;
}

// --- a step, and what is wrong with it
// --------------------------------------------------------------

bool Stage::can_be(Trouble trouble, std::int64_t tokens) const {
  switch (trouble) {
    case Trouble::none:
    case Trouble::thrown:
      return true;
    case Trouble::repeated_id:
      return tokens > 0 && oracle_.router.top_k > 1;
    case Trouble::graph_too_small:
      return options_.graphs && tokens > graph_tokens_ && layout() != RankLayout::concatenated;
    case Trouble::bad_id:  // there must be a number that is no id
      return tokens > 0 &&
             (options_.type != IdType::uint8 || options_.endpoint.shape.num_experts() < 256);
    default:
      return tokens > 0;
  }
}

void Stage::draw_step(const StepWork& work) {
  const std::int64_t tokens = tokens_of(work);
  Open& open = open_.emplace();
  open.step = work.step;
  const auto trouble = static_cast<Trouble>(dice_.chance(8) ? 1 + dice_.draw(6) : 0);
  if (can_be(trouble, tokens)) open.trouble = trouble;
  open.graph = open.trouble == Trouble::graph_too_small ||
               (options_.graphs && tokens <= graph_tokens_ && dice_.chance(60));
  const std::int64_t most = open.graph ? graph_tokens_ : kMaxTokens;
  for (int rank = 0; rank < dp_size(); ++rank) {
    open.dp.push_back(rank == options_.capturer.dp_rank ? tokens : dice_.draw(most));
  }
  open.padded = tokens;
  if (open.graph) {
    open.padded = std::max(graph_tokens_, tokens);
  } else if (layout() != RankLayout::concatenated) {
    open.padded = layout() == RankLayout::padded
                      ? std::ranges::max(open.dp)
                      : std::min(kMaxTokens, tokens + (dice_.chance(50) ? dice_.draw(4) : 0));
  }
  for (const TokenRange& range : work.wanted) open.wanted += range.size();
  if (tokens > 0) open.spoiled = static_cast<std::size_t>(dice_.draw(tokens - 1));
  // The library does not look at the slot of a token whose row is not wanted.
  if (open.trouble == Trouble::bad_slot && !is_wanted(work, open.spoiled)) {
    open.trouble = Trouble::none;
  }
  history_.note("  stage {} step {}: {} tokens, trouble {}{}", options_.number, work.step, tokens,
                static_cast<int>(open.trouble), open.graph ? ", graph" : "");
  counts_[Event::graphs] += open.graph;
}

std::int64_t Stage::first_row(int rank) const {
  switch (layout()) {
    case RankLayout::local:
      return 0;
    case RankLayout::concatenated:
      return std::accumulate(open_->dp.begin(), open_->dp.begin() + rank, std::int64_t{0});
    case RankLayout::padded:
      return rank * (open_->trouble == Trouble::graph_too_small ? graph_tokens_ : open_->padded);
  }
  return 0;
}

std::int64_t Stage::rows() const {
  switch (layout()) {
    case RankLayout::local:
      return open_->padded;
    case RankLayout::concatenated:
      return std::accumulate(open_->dp.begin(), open_->dp.end(), std::int64_t{0});
    case RankLayout::padded:
      return dp_size() * open_->padded;
  }
  return 0;
}

// --- the model
// --------------------------------------------------------------------------------------

void Stage::write(int layer, std::int64_t row, int column, std::int64_t id) {
  const std::size_t width = id_bytes(options_.type);
  const auto index = static_cast<std::size_t>((layer * most_rows_ + row) * stride_ + column);
  std::memcpy(picks_.data() + index * width, &id, width);
}

void Stage::write_row(std::int64_t row, std::uint32_t number) {
  for (int layer = 0; layer < layers(); ++layer) {
    for (int k = 0; k < oracle_.router.top_k; ++k) {
      write(layer, row, k, oracle_.router.pick(number, options_.first_layer + layer, k));
    }
    for (int k = oracle_.router.top_k; k < columns_; ++k) write(layer, row, k, dice_.draw(255));
  }
}

// Other ranks have rows of their own; after them lies what earlier steps left, or something that
// is no id.
void Stage::make_picks(const StepWork& work) {
  if (dice_.chance(30)) std::ranges::fill(picks_, std::byte{0x7F});
  const int own = options_.capturer.dp_rank;
  for (int rank = 0; layout() != RankLayout::local && rank < dp_size(); ++rank) {
    if (rank == own) continue;
    for (std::int64_t i = 0; i < open_->dp[static_cast<std::size_t>(rank)]; ++i) {
      write_row(first_row(rank) + i, 0xFFFF0000u + static_cast<std::uint32_t>(dice_.draw(99)));
    }
  }
  std::vector<Slot> slots;
  for (const auto& [slot, row] : work.rows) {
    write_row(first_row(own) + static_cast<std::int64_t>(slots.size()), row->number);
    slots.push_back(slot);
  }
  spoil_pick();
  if (open_->trouble == Trouble::bad_slot) {
    slots[open_->spoiled] = Slot(dice_.chance(50) ? -1 : options_.endpoint.num_slots);
  }
  if (trace_.on()) open_->traced["slots"] = to_json(slots);
  copy_in(device_picks_, picks_.data(), picks_.size());
  copy_in(device_slots_, slots.data(), slots.size() * sizeof(Slot));
}

// Of a token that is in trouble.
void Stage::spoil_pick() {
  const bool bad = open_->trouble == Trouble::bad_id;
  if (!bad && open_->trouble != Trouble::repeated_id) return;
  const auto row = first_row(options_.capturer.dp_rank) + static_cast<std::int64_t>(open_->spoiled);
  const auto layer = static_cast<int>(dice_.draw(layers() - 1));
  if (bad) {
    return write(layer, row, static_cast<int>(dice_.draw(oracle_.router.top_k - 1)),
                 oracle_.router.num_experts);
  }
  // As in memory that was not written.
  const std::int64_t id = dice_.draw(oracle_.router.num_experts - 1);
  for (const int k : {0, 1}) write(layer, row, k, id);
}

void Stage::copy_in(const Buffer& to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Buffer& source = sources_.emplace_back(device_.allocate_pinned(bytes));
  std::memcpy(source.data(), from, bytes);
  stream_->copy(to.data(), source.data(), bytes);
}

TopkIds Stage::topk_ids(int layer, std::int64_t rows) const {
  const auto first = static_cast<std::size_t>(layer * most_rows_ * stride_);
  return {.data = device_picks_.data() + first * id_bytes(options_.type),
          .type = options_.type,
          .rows = rows,
          .columns = columns_,
          .row_stride = stride_};
}

void Stage::capture_layers(std::int64_t rows, int without) {
  const std::vector<int>& ids = options_.endpoint.shape.moe_layers();
  for (int i = 0; i < layers(); ++i) {
    if (i == without) continue;
    capturer_.capture(ids[static_cast<std::size_t>(i)], topk_ids(i, rows), *stream_);
    note_capture(i, rows);
  }
}

void Stage::capture() {
  const bool lacks_layer = open_->trouble == Trouble::layer_missing;
  if (open_->graph) {
    stream_->launch(lacks_layer ? *graph_without_a_layer_ : *graph_);
    note_launch(lacks_layer);
  } else {
    capture_layers(rows(), lacks_layer ? static_cast<int>(dice_.draw(layers() - 1)) : -1);
  }
  if (open_->trouble != Trouble::layer_twice) return;
  // A draft model's layer of the same number, with picks of its own.
  const auto layer = static_cast<int>(dice_.draw(layers() - 1));
  for (std::int64_t row = 0; row < rows(); ++row) {
    write_row(row, 0xFFFE0000u + static_cast<std::uint32_t>(row));
  }
  copy_in(device_picks_, picks_.data(), picks_.size());
  capturer_.capture(options_.endpoint.shape.moe_layers()[static_cast<std::size_t>(layer)],
                    topk_ids(layer, rows()), *stream_);
  note_capture(layer, rows());
}

// --- the Capturer
// -----------------------------------------------------------------------------------

void Stage::begin(const StepWork& work) {
  StepInfo info{.step = work.step, .num_tokens = tokens_of(work), .padded_tokens = open_->padded};
  if (layout() != RankLayout::local) info.dp_tokens = open_->dp;
  info.requests = work.requests;
  if (open_->wanted != tokens_of(work) || dice_.chance(50)) info.wanted = work.wanted;
  open_->guard.emplace(capturer_, info, *stream_);
  note_begin(info);
}

// Some of its layers were captured by then, or all; its guard ends.
void Stage::throw_in_step() {
  const auto layers_so_far = static_cast<std::size_t>(dice_.draw(layers()));
  const std::vector<int>& ids = options_.endpoint.shape.moe_layers();
  for (std::size_t i = 0; i < layers_so_far; ++i) {
    capturer_.capture(ids[i], topk_ids(static_cast<int>(i), rows()), *stream_);
    note_capture(static_cast<int>(i), rows());
  }
  open_->guard.reset();
  history_.note("  stage {}: step {} throws", options_.number, open_->step);
}

void Stage::take_failures() {
  for (const StepFailed& failure : capturer_.take_failures()) {
    history_.note("  stage {} is told that step {} failed", options_.number, failure.step());
    require(untold_.erase(failure.step()) == 1, "stage {}: step {} did not fail, but: {}",
            options_.number, failure.step(), failure.what());
    ++counts_[Event::failures_told];
  }
}

bool Stage::publish() {
  try {
    open_->guard->publish(device_slots_.as<const Slot>());
    return true;
  } catch (const TimeoutError&) {
    ++counts_[Event::full_rings];
    history_.note("  stage {}: step {} waits", options_.number, open_->step);
  }
  if (!options_.gives_up || dice_.chance(90)) return false;
  // An engine that goes on without its rows. Tokens were sampled.
  open_->guard.reset();
  open_->trouble = Trouble::published_in_vain;
  history_.note("  stage {}: step {} is given up", options_.number, open_->step);
  return true;
}

void Stage::tell(const StepWork& work) {
  constexpr Event kTroubles[] = {Event::steps,
                                 Event::layers_missing,
                                 Event::layers_twice,
                                 Event::bad_ids,
                                 Event::repeated_ids,
                                 Event::bad_slots,
                                 Event::graphs_too_small,
                                 Event::thrown,
                                 Event::published_in_vain};
  const bool given_up =
      open_->trouble == Trouble::thrown || open_->trouble == Trouble::published_in_vain;
  const bool dropped = capturer_.dropped().count != dropped_;
  if (dropped && !given_up) {
    require(options_.on_full == OnFull::drop, "stage {}: step {} was dropped", options_.number,
            work.step);
    ++counts_[Event::dropped_steps];
    return tell_dropped(work);
  }
  if (open_->wanted == 0) {
    ++counts_[Event::unpublished];
    return;
  }
  const bool failed = fails();
  ++counts_[Event::steps];
  if (failed) {
    ++counts_[Event::failed_steps];
    ++counts_[kTroubles[static_cast<std::size_t>(open_->trouble)]];
    untold_.insert(work.step);
  }
  take_failures();
  if (dropped) return tell_dropped(work);
  SlotRows rows;
  for (std::size_t i = 0; i < work.rows.size(); ++i) {
    if (!is_wanted(work, i)) continue;
    auto [slot, row] = work.rows[i];
    const int layer = oracle_.router.missing_layer(row->number) - options_.first_layer;
    const bool misses = layer >= 0 && layer < layers();
    counts_[Event::missing_routes] += misses;
    if (failed || misses) {
      oracle_.lose(row);
      row = nullptr;
    }
    // Nothing is known of where this row really went; its own slot keeps what it has.
    if (open_->trouble == Trouble::bad_slot && i == open_->spoiled) continue;
    rows.emplace_back(slot, std::move(row));
  }
  if (given_up) rows.clear();  // where they would be is not known
  if (given_up || open_->trouble == Trouble::bad_slot) {
    return oracle_.lose(options_.number, work.step, std::move(rows));
  }
  oracle_.publish(options_.number, work.step, std::move(rows), failed);
}

// What else would have been wrong with the step does not matter any more.
void Stage::tell_dropped(const StepWork& work) {
  require(capturer_.dropped().last == work.step && capturer_.dropped().count == ++dropped_,
          "stage {}: {} steps were dropped, the last is {}, where step {} was", options_.number,
          capturer_.dropped().count, capturer_.dropped().last, work.step);
  history_.note("  stage {}: step {} is dropped", options_.number, work.step);
  for (std::size_t i = 0; i < work.rows.size(); ++i) {
    if (is_wanted(work, i)) oracle_.lose(work.rows[i].second);
  }
  oracle_.lose(options_.number, work.step, {});
}

void Stage::go_on() {
  if (!options_.per_request) return;
  try {
    capturer_.finalize(last_, Milliseconds(0));
  } catch (const TimeoutError&) {
    // Of the device, or a full ring.
  }
}

bool Stage::finish() {
  try {
    capturer_.finalize(last_, Milliseconds(0));
  } catch (const TimeoutError&) {
    return false;
  }
  take_failures();
  require(untold_.empty(), "stage {}: it was not told that step {} failed", options_.number,
          *untold_.begin());
  return true;
}

// Calls that must be refused, and change nothing.
void Stage::ask_for_trouble(const StepWork& work) {
  ++counts_[Event::refused_calls];
  const int layer = options_.endpoint.shape.moe_layers().front();
  const std::int64_t tokens = tokens_of(work);
  switch (dice_.draw(1)) {
    case 0:
      return require_refusal<StateError>("H1: a layer that is bound twice",
                                         [&] { capturer_.bind(layer); });
    default: {
      const std::vector<std::int64_t> dp(static_cast<std::size_t>(dp_size()), tokens);
      const StepInfo info{.step = work.step,
                          .num_tokens = tokens,
                          .padded_tokens = kMaxTokens + 1,
                          .dp_tokens = dp};
      return require_refusal<RangeError>("H4: a step with more tokens than the device cache",
                                         [&] { capturer_.begin_step(info, *stream_); });
    }
  }
}

// As above, of the step that is open.
void Stage::ask_for_trouble_in_step() {
  ++counts_[Event::refused_calls];
  TopkIds ids = topk_ids(0, rows());
  const auto refused = [&](const char* what) {
    require_refusal<ArgumentError>(what, [&] {
      capturer_.capture(options_.endpoint.shape.moe_layers().front(), ids, *stream_);
    });
  };
  switch (dice_.draw(2)) {
    case 0:
      ids.rows += dp_size() * kMaxTokens;
      return refused("H5: rows of no layout");
    case 1:
      ++ids.columns;
      ++ids.row_stride;
      return refused("H27: columns that were not declared");
    default:
      if (options_.endpoint.shape.num_experts() <= 256) return;
      ids.type = IdType::uint8;
      return refused("H21: a type that does not hold every id");
  }
}

}  // namespace moetap::simulation
