#include <moetap/endpoint.h>
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace moetap {
namespace {

// Large enough for any machine, small enough that no size computed from them overflows 64 bits:
// a row has at most 1024 layers x 65,536 ids and weights of 6 bytes, below 2^29 bytes.
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 32;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr int kMaxRingDepth = 1024;
constexpr int kMaxRank = 999'999;
constexpr int kMaxShare = 999;

void check_between(std::string_view field, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value < least || value > most) {
    throw ArgumentError(
        fmt::format("endpoint: {} is {}, but must be {} to {}", field, value, least, most));
  }
}

void check_instance(const std::string& instance) {
  constexpr std::string_view allowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  if (instance.empty() || instance.size() > 64 ||
      instance.find_first_not_of(allowed) != std::string::npos) {
    throw ArgumentError(fmt::format(
        "endpoint: instance is '{}', but must be 1 to 64 letters, digits, '-', '_' or '.'",
        instance));
  }
}

}  // namespace

void Endpoint::validate() const {
  check_instance(instance);
  check_between("dp_rank", dp_rank, 0, kMaxRank);
  check_between("stage", stage, 0, kMaxShare);
  check_between("part", part, 0, kMaxShare);
  check_between("num_slots", num_slots, 1, kMaxSlots);
  check_between("max_tokens", max_tokens, 1, kMaxTokens);
  check_between("ring_depth", ring_depth, 1, kMaxRingDepth);
  check_between("steps_in_flight", steps_in_flight, 1, kMaxRingDepth);
  if (layout == ShmLayout::wire && (stage != 0 || part != 0)) {
    throw ArgumentError(fmt::format(
        "endpoint: stage {}, part {} of the wire-compatible layout, whose one buffer holds whole "
        "rows and has one owner: use the native layout, or one stage and gathered parts",
        stage, part));
  }
  if (layout == ShmLayout::wire && shape.weight_type() != WeightType::none) {
    throw ArgumentError(
        fmt::format("endpoint: {} weights with the wire-compatible layout, which is int32 ids and "
                    "nothing else: "
                    "use the native layout, or a shape without weights",
                    weight_type_name(shape.weight_type())));
  }
  if (layout == ShmLayout::wire && huge_pages) {
    throw ArgumentError(
        "endpoint: huge_pages is true with the wire-compatible layout, whose buffer another "
        "program may make: leave it off, or use the native layout");
  }
  if (layout != ShmLayout::native && layout != ShmLayout::wire) {
    throw ArgumentError(fmt::format("endpoint: layout is {}, but must be native (0) or wire (1)",
                                    static_cast<int>(layout)));
  }
}

void Endpoint::validate_ring() const {
  validate();
  if (ring_depth >= steps_in_flight) return;
  throw ArgumentError(fmt::format(
      "endpoint: ring_depth is {}, but {} steps are in flight at once (a pipeline of so "
      "many stages, or steps_in_flight): raise ring_depth to {} or more, or a stage "
      "waits for the scheduler in every step",
      ring_depth, steps_in_flight, steps_in_flight));
}

Endpoint endpoint_of(const Endpoint& engine, const Topology& rank) {
  rank.validate(engine.shape);
  Endpoint endpoint = engine;
  endpoint.dp_rank = rank.dp_rank;
  endpoint.stage = rank.pp_rank;
  endpoint.part = rank.parts == SequenceParts::published ? rank.tp_rank : 0;
  endpoint.shape = rank.stage_shape(engine.shape, rank.pp_rank);
  endpoint.steps_in_flight = std::max(engine.steps_in_flight, rank.pp_size);
  const bool whole = rank.pp_size == 1 && rank.parts != SequenceParts::published;
  if (engine.layout == ShmLayout::wire && !whole) {
    throw ArgumentError(fmt::format(
        "endpoint: {} pipeline stages, {} publishing ranks each, and the wire-compatible layout, "
        "whose one buffer holds whole rows and has one owner: use the native layout",
        rank.pp_size, rank.parts == SequenceParts::published ? rank.tp_size : 1));
  }
  endpoint.validate();
  return endpoint;
}

std::vector<std::vector<Endpoint>> endpoints_of(const Endpoint& engine, const Topology& topology) {
  topology.validate(engine.shape);
  std::vector<std::vector<Endpoint>> stages;
  Topology rank = topology;
  const int parts = topology.parts == SequenceParts::published ? topology.tp_size : 1;
  for (const int stage : topology.moe_stages()) {
    rank.pp_rank = stage;
    std::vector<Endpoint>& endpoints = stages.emplace_back();
    for (rank.tp_rank = 0; rank.tp_rank < parts; ++rank.tp_rank) {
      endpoints.push_back(endpoint_of(engine, rank));
    }
  }
  return stages;
}

}  // namespace moetap
