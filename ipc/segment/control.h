// The head of each of our segments. It says what the creator made the segment for, so that the
// other end refuses bytes that mean something else.
#pragma once

#include <moetap/endpoint.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "ipc/internal/segment.h"

namespace moetap {

// Plain data, so that a reader can copy it before it checks it.
struct ControlFields {
  std::uint32_t version = 0;  // version of the whole segment's layout
  std::int32_t ring_depth = 0;
  std::int64_t num_slots = 0;
  std::int64_t max_tokens = 0;
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_layers = 0;
  std::int32_t weight_type = 0;  // WeightType
  std::int32_t num_hidden_layers = 0;
  std::int32_t repeats_experts = 0;  // 0 or 1
  std::int32_t moe_layers[ModelShape::kMaxLayers] = {};

  // ArgumentError if the shape is not valid.
  ModelShape shape() const;

  // MismatchError with both values unless the creator's version, shape and sizes are this
  // endpoint's.
  void require(const Endpoint& endpoint, const std::string& name,
               std::uint32_t layout_version) const;
};

// At offset 0 of a segment.
struct ControlHead {
  std::atomic<std::uint64_t> magic{0};  // of the kind of segment; 0: still being made
  ControlFields fields;                 // all set when `magic` is

  // Called by the creator after everything else in the segment is ready.
  void publish(const Endpoint& endpoint, std::uint64_t segment_magic, std::uint32_t layout_version);
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Opens the segment `name`, of at least `bytes`, once a living owner has published its head.
// TimeoutError after endpoint.timeout with the name and what was found instead; MismatchError for
// another magic, version, shape or size.
Segment attach(const std::string& name, std::size_t bytes, const Endpoint& endpoint,
               std::uint64_t segment_magic, std::uint32_t layout_version);

}  // namespace moetap
