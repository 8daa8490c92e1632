#include "ipc/segment/control.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/internal/wait.h"
#include "ipc/system/private_copy.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

// Compares the shape in shared memory with ours, even if it is not a valid ModelShape.
void require_shape(const ControlFields& fields, const ModelShape& ours, const std::string& name) {
  std::string theirs;
  std::string difference;
  try {
    const ModelShape shape = fields.shape();
    if (shape == ours) return;
    theirs = shape.to_string();
    difference = fmt::format(" ({})", shape.difference(ours));
  } catch (const ArgumentError& error) {
    theirs = error.what();
  }
  throw MismatchError(
      fmt::format("the worker of {} has {}, this reader {}{}: give both ends the same model", name,
                  theirs, ours.to_string(), difference));
}

const ControlHead& head_of(const Segment& segment) {
  return *reinterpret_cast<const ControlHead*>(segment.bytes().data());
}

// Why this segment cannot be used yet, or nothing. It is not mapped until its creator is ready.
std::optional<std::string> not_ready(const Segment& segment) {
  if (!segment.owner_alive()) {
    return "the one that is there was left by a process that died";
  }
  if (segment.first_word() == 0) {
    return fmt::format("process {} is still making it", segment.owner_pid());
  }
  return std::nullopt;
}

void require_bytes(const Segment& segment, std::size_t bytes) {
  if (segment.bytes().size() >= bytes) return;
  throw MismatchError(fmt::format("{} has {} bytes, {} are needed: remove /dev/shm{}",
                                  segment.name(), segment.bytes().size(), bytes, segment.name()));
}

}  // namespace

void ControlHead::publish(const Endpoint& endpoint, std::uint64_t segment_magic,
                          std::uint32_t layout_version) {
  fields.version = layout_version;
  fields.ring_depth = endpoint.ring_depth;
  fields.num_slots = endpoint.num_slots;
  fields.max_tokens = endpoint.max_tokens;
  fields.top_k = endpoint.shape.top_k();
  fields.num_experts = endpoint.shape.num_experts();
  fields.num_layers = endpoint.shape.num_layers();
  fields.weight_type = static_cast<std::int32_t>(endpoint.shape.weight_type());
  fields.num_hidden_layers = endpoint.shape.num_hidden_layers();
  fields.repeats_experts = endpoint.shape.repeats_experts() ? 1 : 0;
  std::ranges::copy(endpoint.shape.moe_layers(), fields.moe_layers);
  MOETAP_POINT("create described");
  magic.store(segment_magic, std::memory_order_release);
}

ModelShape ControlFields::shape() const {
  if (num_layers < 1 || num_layers > ModelShape::kMaxLayers) {
    throw ArgumentError(
        fmt::format("an impossible shape ({} layers, top-{} of {} experts; layers must be 1 to {})",
                    num_layers, top_k, num_experts, ModelShape::kMaxLayers));
  }
  if (weight_type < 0 || weight_type > static_cast<std::int32_t>(WeightType::bfloat16)) {
    throw ArgumentError(fmt::format("an impossible weight type ({}; it must be 0 to {})",
                                    weight_type, static_cast<int>(WeightType::bfloat16)));
  }
  if (repeats_experts != 0 && repeats_experts != 1) {
    throw ArgumentError(
        fmt::format("an impossible declaration of repeated experts ({}; it must be "
                    "0 or 1)",
                    repeats_experts));
  }
  return ModelShape({moe_layers, moe_layers + num_layers}, top_k, num_experts, num_hidden_layers)
      .with_repeated_experts(repeats_experts == 1)
      .with_weights(static_cast<WeightType>(weight_type));
}

void ControlFields::require(const Endpoint& endpoint, const std::string& name,
                            std::uint32_t layout_version) const {
  if (version != layout_version) {
    throw MismatchError(fmt::format(
        "{} has layout version {}, this reader knows {}: run one version of moetap at both ends",
        name, version, layout_version));
  }
  require_shape(*this, endpoint.shape, name);
  const auto require_equal = [&](const char* field, std::int64_t theirs, std::int64_t ours) {
    if (theirs == ours) return;
    throw MismatchError(
        fmt::format("the worker of {} has {} {}, this reader {}: give both ends the same endpoint",
                    name, field, theirs, ours));
  };
  require_equal("num_slots", num_slots, endpoint.num_slots);
  require_equal("max_tokens", max_tokens, endpoint.max_tokens);
  require_equal("ring_depth", ring_depth, endpoint.ring_depth);
}

Segment attach(const std::string& name, std::size_t bytes, const Endpoint& endpoint,
               std::uint64_t segment_magic, std::uint32_t layout_version) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = deadline_after(endpoint.timeout);
  for (;;) {
    std::string found = "there is none";
    try {
      Segment segment = Segment::find(name);
      if (auto reason = not_ready(segment)) {
        found = *reason;
      } else if (segment.map()) {
        require_bytes(segment, sizeof(ControlHead));
        const std::uint64_t magic = head_of(segment).magic.load(std::memory_order_acquire);
        if (magic != segment_magic) {
          throw MismatchError(fmt::format(
              "{} holds something else (magic {:#018x}, expected {:#018x}): remove /dev/shm{}",
              name, magic, segment_magic, name));
        }
        private_copy(head_of(segment).fields).require(endpoint, name, layout_version);
        require_bytes(segment, bytes);
        return segment;
      }
    } catch (const SystemError& error) {
      if (error.code().value() != ENOENT) throw;
    }
    if (Clock::now() >= deadline) {
      throw TimeoutError(fmt::format(
          "waited {} ms for the worker's shared memory {}, but {}: start the worker first, or "
          "raise the endpoint's timeout",
          endpoint.timeout.count(), name, found));
    }
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + std::chrono::milliseconds(2)));
  }
}

}  // namespace moetap
