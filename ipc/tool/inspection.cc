#include "inspection.h"

#include <moetap/file_lock.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "failure.h"
#include "names.h"
#include "native_layout.h"
#include "ring.h"
#include "segment_file.h"

namespace moetap::tool {
namespace {

using Kind = SegmentInfo::Kind;

Endpoint checked_endpoint(const SegmentFile& file, const SegmentInfo& segment) {
  const bool ring = segment.kind == Kind::ring;
  const auto fields = file.at<ControlFields>(offsetof(ControlHead, fields));
  const std::uint32_t version = ring ? kRingVersion : kShmVersion;
  if (fields.version != version) {
    throw MismatchError(
        fmt::format("layout version {}, this program knows {}", fields.version, version));
  }
  const NamedEndpoint named = parse_name(segment.name).value_or(NamedEndpoint{});
  try {
    Endpoint endpoint{.instance = named.instance,
                      .dp_rank = named.dp_rank,
                      .stage = named.stage,
                      .part = named.part,
                      .shape = fields.shape(),
                      .num_slots = fields.num_slots,
                      .max_tokens = fields.max_tokens,
                      .ring_depth = fields.ring_depth};
    endpoint.validate();
    if ((ring ? ring_name(endpoint) : buffer_name(endpoint)) != segment.name) {
      throw MismatchError(fmt::format("{} is no name of an instance and a rank", segment.name));
    }
    const std::size_t needed = ring ? Ring::bytes(endpoint) : native_bytes(endpoint);
    if (file.bytes() >= needed) return endpoint;
    throw MismatchError(
        fmt::format("{} bytes, but what it says it holds takes {}", file.bytes(), needed));
  } catch (const std::logic_error& error) {  // ArgumentError: nobody makes such an endpoint
    throw MismatchError(error.what());
  }
}

void inspect_buffer(const SegmentFile& file, Inspection& found) {
  found.last_step = file.at<Step>(offsetof(ShmControl, last_step));
  const auto stamps = read_stamps(file, found.endpoint->num_slots);
  found.rows_present = std::ranges::count_if(stamps, [](Step stamp) { return stamp != 0; });
  for (std::size_t i = 0; i < ShmControl::kFailures; ++i) {
    const std::size_t entry = offsetof(ShmControl, failed) + i * sizeof(FailedStep);
    const Step step = file.at<Step>(entry + offsetof(FailedStep, step));
    if (step == 0) continue;
    using Reason = std::array<char, sizeof(FailedStep::reason)>;
    const auto reason = file.at<Reason>(entry + offsetof(FailedStep, reason));
    found.failed_steps.emplace_back(
        step, std::string(reason.data(), strnlen(reason.data(), reason.size())));
  }
  std::ranges::sort(found.failed_steps);
  if (found.segment.lock_file.empty()) return;
  try {
    found.lock_holder = FileLock(found.segment.lock_file, FileLock::Open::existing).holder();
  } catch (const std::exception&) {  // its worker has just removed it, or nobody made it
  }
}

void inspect_ring(const SegmentFile& file, Inspection& found) {
  const auto committed = file.at<std::uint64_t>(offsetof(RingControl, committed));
  const auto released = file.at<std::uint64_t>(offsetof(RingControl, released));
  const auto depth = static_cast<std::uint64_t>(found.endpoint->ring_depth);
  found.waiting = committed - released;
  if (found.waiting > depth) {
    throw MismatchError(fmt::format("{} records handed over and {} taken, in a ring of {}",
                                    committed, released, depth));
  }
  // Behind some records of other kinds, at most a ring's depth back.
  for (std::uint64_t n = committed; n > 0 && committed - n < depth; --n) {
    const auto descriptor =
        file.at<Descriptor>(sizeof(RingControl) + (n - 1) % depth * sizeof(RingDescriptor));
    using D = Descriptor::Kind;
    if (descriptor.kind > D::step_done) {
      throw MismatchError(
          fmt::format("a descriptor of kind {}", static_cast<std::uint32_t>(descriptor.kind)));
    }
    if (descriptor.kind != D::request && descriptor.kind != D::request_end) {
      found.last_step = descriptor.step;
      return;
    }
  }
}

}  // namespace

Endpoint endpoint_of(const SegmentInfo& segment) {
  return checked_endpoint(SegmentFile(segment.name), segment);
}

Inspection inspect(const SegmentInfo& segment) {
  Inspection found{.segment = segment};
  if (segment.owner == SegmentInfo::Owner::unknown || segment.kind == Kind::wire) return found;
  try {
    const SegmentFile file(segment.name);
    if (segment.kind == Kind::other) {
      const auto magic = file.bytes() < sizeof(std::uint64_t) ? 0 : file.at<std::uint64_t>(0);
      if (magic != 0) throw MismatchError(fmt::format("unknown magic {:#018x}", magic));
      return found;
    }
    found.endpoint = checked_endpoint(file, segment);
    segment.kind == Kind::ring ? inspect_ring(file, found) : inspect_buffer(file, found);
  } catch (const MismatchError& error) {
    found.problem = error.what();
    found.endpoint.reset();
  } catch (const NotThere& error) {
    found.problem = "was removed meanwhile";
  }
  return found;
}

}  // namespace moetap::tool
