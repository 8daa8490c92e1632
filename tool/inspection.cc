#include "tool/inspection.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "tool/failure.h"
#include "tool/segment_file.h"

namespace moetap::tool {
namespace {

using Kind = SegmentInfo::Kind;

// Writes that precede the value just read are visible to the next reads.
void fence() { std::atomic_thread_fence(std::memory_order_acquire); }

// By its head, which is written after everything else.
Kind kind_of(const SegmentFile& file) {
  const auto magic = file.size().bytes < sizeof(std::uint64_t) ? 0 : file.at<std::uint64_t>(0);
  fence();
  if (magic == kShmMagic) return Kind::shm;
  if (magic == kRingMagic) return Kind::ring;
  if (magic == 0) return Kind::other;
  throw MismatchError(fmt::format("unknown magic {:#018x}", magic));
}

// Its creator has reserved all of it: a part that does not exist need not be read.
void require_bytes(const SegmentFile& file, std::size_t needed) {
  const auto [bytes, there] = file.size();
  if (bytes < needed) {
    throw MismatchError(fmt::format("{} bytes, but what it says it holds takes {}", bytes, needed));
  }
  if (there < needed) {
    throw MismatchError(
        fmt::format("what it says it holds takes {} bytes, of which {} are there", needed, there));
  }
}

Endpoint checked_endpoint(const SegmentFile& file, Kind kind) {
  const bool ring = kind == Kind::ring;
  const auto fields = file.at<ControlFields>(offsetof(ControlHead, fields));
  const std::uint32_t version = ring ? kRingVersion : kShmVersion;
  if (fields.version != version) {
    throw MismatchError(
        fmt::format("layout version {}, this program knows {}", fields.version, version));
  }
  const NamedEndpoint named = parse_name(file.name()).value_or(NamedEndpoint{});
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
    if ((ring ? ring_name(endpoint) : buffer_name(endpoint)) != file.name()) {
      throw MismatchError(fmt::format("{} is no name of an instance and a rank", file.name()));
    }
    require_bytes(file, ring ? Ring::bytes(endpoint) : native_bytes(endpoint));
    return endpoint;
  } catch (const std::logic_error& error) {  // ArgumentError: no such endpoint is valid
    throw MismatchError(error.what());
  }
}

// Nothing for an entry that is empty or being written.
std::optional<std::pair<Step, std::string>> failed_step(const SegmentFile& file,
                                                        std::size_t entry) {
  const auto step_now = [&] { return file.at<Step>(entry + offsetof(FailedStep, step)); };
  const Step step = step_now();
  fence();
  using Reason = std::array<char, sizeof(FailedStep::reason)>;
  const auto reason = file.at<Reason>(entry + offsetof(FailedStep, reason));
  fence();
  if (step == 0 || step_now() != step) return std::nullopt;
  return std::pair(step, std::string(reason.data(), strnlen(reason.data(), reason.size())));
}

// The kernel does not list a lock's owner that has no pid in this PID namespace. So this tries to
// take the lock: success shows that it was free. It is kept only briefly; a process that wants it
// meanwhile polls once more.
void inspect_lock(FileLock lock, Inspection& found) {
  constexpr int kTries = 10;  // an owner that is listed a moment later
  for (int tries = 0; tries < kTries && found.lock_holder == 0; ++tries) {
    found.lock_holder = lock.holder();
    found.lock_held = found.lock_holder != 0 || !lock.try_lock();
    if (!found.lock_held) return lock.unlock();
  }
}

void inspect_buffer(const SegmentFile& file, Inspection& found) {
  found.last_step = file.at<Step>(offsetof(ShmControl, last_step));
  for_each_stamps(file, found.endpoint->num_slots, [&](Slot, std::span<const Step> stamps) {
    found.rows_present += std::ranges::count_if(stamps, [](Step stamp) { return stamp != 0; });
  });
  for (std::size_t i = 0; i < ShmControl::kFailures; ++i) {
    auto failed = failed_step(file, offsetof(ShmControl, failed) + i * sizeof(FailedStep));
    if (failed) found.failed_steps.push_back(std::move(*failed));
  }
  std::ranges::sort(found.failed_steps);
  inspect_lock(file.lock(), found);
}

std::uint64_t committed_now(const SegmentFile& file) {
  return file.at<std::uint64_t>(offsetof(RingControl, committed));
}

// Both ends continue meanwhile. Counters only grow, and `released` is within the ring's depth below
// `committed`. The values of `released` read before and after must satisfy this too.
std::uint64_t waiting_now(const SegmentFile& file, std::uint64_t depth) {
  const auto released_now = [&] { return file.at<std::uint64_t>(offsetof(RingControl, released)); };
  const std::uint64_t before = released_now();
  fence();
  const std::uint64_t committed = committed_now(file);
  fence();
  const std::uint64_t after = released_now();
  if (before > committed || (committed > after && committed - after > depth)) {
    throw MismatchError(fmt::format("{} records handed over and {} taken, in a ring of {}",
                                    committed, before > committed ? before : after, depth));
  }
  return committed > after ? committed - after : 0;
}

// The step of the last record that has a step's outcome, 0 if none has. At most a ring's depth of
// other records come after it. Nothing if a descriptor was overwritten while it was read.
std::optional<Step> try_last_step(const SegmentFile& file, std::uint64_t depth) {
  const std::uint64_t committed = committed_now(file);
  fence();
  for (std::uint64_t n = committed; n > 0 && (n == committed || committed - n + 1 < depth); --n) {
    const auto descriptor =
        file.at<Descriptor>(sizeof(RingControl) + (n - 1) % depth * sizeof(RingDescriptor));
    fence();
    const std::uint64_t now = committed_now(file);
    // The producer writes a record's descriptor just before it hands the record over.
    if (now != committed && now - n + 1 >= depth) return std::nullopt;
    using D = Descriptor::Kind;
    if (descriptor.kind > D::step_done) {
      throw MismatchError(
          fmt::format("a descriptor of kind {}", static_cast<std::uint32_t>(descriptor.kind)));
    }
    if (descriptor.kind != D::request && descriptor.kind != D::request_end) return descriptor.step;
  }
  return Step{0};
}

// Two equal reads are not half of a write.
DroppedSteps dropped_so_far(const SegmentFile& file) {
  struct alignas(DropNote) Copy {
    std::array<std::byte, sizeof(DropNote)> bytes;
  };
  constexpr int kTries = 1000;
  const auto copy = [&file] { return file.at<Copy>(offsetof(RingControl, drops)); };
  for (int tries = 0; tries < kTries; ++tries) {
    const Copy once = copy();
    fence();
    if (once.bytes != copy().bytes) continue;
    const auto drops = reinterpret_cast<const DropNote*>(once.bytes.data())->read();
    if (drops) return {drops->run.total, drops->run.last, drops->run.given_up};
  }
  return {};  // its worker died while it wrote
}

void inspect_ring(const SegmentFile& file, Inspection& found) {
  constexpr int kTries = 1000;  // no worker fills a ring again and again in the time of one read
  const auto depth = static_cast<std::uint64_t>(found.endpoint->ring_depth);
  found.waiting = waiting_now(file, depth);
  found.dropped = dropped_so_far(file);
  for (int tries = 0; tries < kTries; ++tries) {
    if (const auto step = try_last_step(file, depth)) {
      found.last_step = *step;
      return;
    }
  }
  throw MismatchError("records are handed over faster than any worker does");
}

}  // namespace

Endpoint endpoint_of(const SegmentFile& file) {
  const Kind kind = kind_of(file);
  if (kind != Kind::other) return checked_endpoint(file, kind);
  throw TimeoutError(fmt::format("{} is still being made: ask again", file.name()));
}

Inspection inspect(const SegmentInfo& segment) {
  Inspection found{.segment = segment};
  if (segment.owner == SegmentInfo::Owner::unknown || segment.kind == Kind::wire) return found;
  try {
    const SegmentFile file(segment.name);
    found.segment.kind = kind_of(file);
    if (found.segment.kind == Kind::other) return found;
    found.endpoint = checked_endpoint(file, found.segment.kind);
    found.segment.kind == Kind::ring ? inspect_ring(file, found) : inspect_buffer(file, found);
  } catch (const MismatchError& error) {
    found.problem = error.what();
    found.endpoint.reset();
  }
  return found;
}

}  // namespace moetap::tool
