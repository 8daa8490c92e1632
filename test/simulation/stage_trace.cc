// What a stage of a simulated worker calls, as a trace.
#include "test/simulation/stage.h"

namespace moetap::simulation {
namespace {

const char* name_of(IdType type) {
  constexpr const char* kNames[] = {"uint8", "uint16", "int16", "int32", "int64"};
  static_assert(static_cast<int>(IdType::uint8) == 0 && static_cast<int>(IdType::int64) == 4);
  return kNames[static_cast<std::size_t>(type)];
}

const char* name_of(RankLayout layout) {
  return layout == RankLayout::local          ? "local"
         : layout == RankLayout::concatenated ? "concatenated"
                                              : "padded";
}

const char* name_of(RequestEnd how) {
  return how == RequestEnd::finished    ? "finished"
         : how == RequestEnd::preempted ? "preempted"
                                        : "aborted";
}

}  // namespace

void Stage::note_options() {
  if (!trace_.on()) return;
  const Endpoint& endpoint = options_.endpoint;
  trace_.note("stage", {{"stage", options_.number},
                        {"layers", endpoint.shape.moe_layers()},
                        {"top_k", endpoint.shape.top_k()},
                        {"num_experts", endpoint.shape.num_experts()},
                        {"num_slots", endpoint.num_slots},
                        {"max_tokens", endpoint.max_tokens},
                        {"transport", options_.shm ? "shm" : "device"},
                        {"per_request", options_.per_request},
                        {"drafts", options_.drafts == Drafts::tree ? "tree" : "chain"},
                        {"staging_depth", options_.staging_depth},
                        {"dp_rank", options_.capturer.dp_rank},
                        {"dp_size", dp_size()},
                        {"layout", name_of(layout())},
                        {"shared_expert_columns", options_.capturer.shared_expert_columns},
                        {"dtype", name_of(options_.type)},
                        {"row_stride", stride_},
                        {"graph_tokens", options_.graphs ? graph_tokens_ : 0},
                        {"lacking", lacking_}});
}

void Stage::accept(Step step, RequestId request, std::int64_t num_tokens,
                   std::span<const std::int64_t> accepted) {
  capturer_.accept(step, request, num_tokens, accepted);
  if (!trace_.on()) return;
  trace_.note("accept_in_worker", {{"stage", options_.number},
                                   {"step", to_json(step)},
                                   {"request", to_json(request)},
                                   {"num_tokens", num_tokens},
                                   {"accepted", to_json(accepted)}});
}

void Stage::end_request(RequestId request, RequestEnd how) {
  capturer_.end_request(request, how);
  if (!trace_.on()) return;
  trace_.note("end_request",
              {{"stage", options_.number}, {"request", to_json(request)}, {"how", name_of(how)}});
}

void Stage::note_begin(const StepInfo& info) {
  if (!trace_.on()) return;
  Json& traced = open_->traced;
  traced["stage"] = options_.number;
  traced["step"] = to_json(info.step);
  traced["num_tokens"] = info.num_tokens;
  traced["padded_tokens"] = info.padded_tokens;
  traced["dp_tokens"] = to_json(info.dp_tokens);
  traced["requests"] = Json::array();
  for (const RequestSpan& span : info.requests) {
    traced["requests"].push_back(
        {span.request.value(), span.position, span.count, span.num_drafts});
  }
  if (info.wanted) traced["wanted"] = to_json(*info.wanted);
  traced["captures"] = Json::array();
}

// Also while a graph is recorded: then there is no step.
void Stage::note_capture(int layer, std::int64_t rows) {
  if (!trace_.on() || !open_) return;
  const std::size_t row = static_cast<std::size_t>(stride_) * id_bytes(options_.type);
  const auto picks = std::span<const std::byte>(picks_).subspan(
      static_cast<std::size_t>(layer * most_rows_) * row, static_cast<std::size_t>(rows) * row);
  open_->traced["captures"].push_back({{"layer", layer}, {"picks", to_json(picks)}});
}

void Stage::note_launch(bool lacks_layer) {
  if (!trace_.on()) return;
  const std::int64_t rows =
      layout() == RankLayout::local ? graph_tokens_ : dp_size() * graph_tokens_;
  for (int layer = 0; layer < layers(); ++layer) note_capture(layer, rows);
  open_->traced["graph"] = lacks_layer ? "lacking" : "whole";
  open_->traced["in_graph"] = layers();  // of the captures, so many were in it
}

void Stage::note_end(bool dropped) {
  if (!trace_.on()) return;
  const bool given_up =
      open_->trouble == Trouble::thrown || open_->trouble == Trouble::published_in_vain;
  open_->traced["ends"] = given_up ? "given_up" : dropped ? "dropped" : "published";
  open_->traced["fails"] = fails();
  trace_.note("step", std::move(open_->traced));
}

}  // namespace moetap::simulation
