#include "ipc/reader/joined_readers.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap::detail {

namespace {

using Clock = std::chrono::steady_clock;

// The pause between two rounds of a wait. Each member has its own wake word, and a thread can sleep
// on only one. A step is found at most this much later than by a wait for one member.
void pause_for(Clock::duration waited) {
  using std::chrono::microseconds;
  if (waited < microseconds(25)) return std::this_thread::yield();
  std::this_thread::sleep_for(std::min<Clock::duration>(waited / 8, microseconds(200)));
}

}  // namespace

void JoinedReaders::add(std::unique_ptr<SlotReadTransport> reader, std::string name) {
  if (!reader)
    throw ArgumentError(fmt::format("the transport of {} is null, give one of each rank", name));
  if (!members_.empty() && reader->num_slots() != first().num_slots()) {
    throw ArgumentError(fmt::format(
        "{} has {} slots, {} has {}: all use the same slot numbers, give all one num_slots", name,
        reader->num_slots(), members_.front().name, first().num_slots()));
  }
  members_.push_back({std::move(reader), std::move(name)});
}

Step JoinedReaders::poll() {
  Step least = StepWindow{}.last;
  for (const Member& member : members_) least = std::min(least, member.reader->poll());
  return arrived_ = std::max(arrived_, least);
}

bool JoinedReaders::worker_alive() {
  return std::ranges::all_of(members_,
                             [](const Member& member) { return member.reader->worker_alive(); });
}

DroppedSteps JoinedReaders::dropped() {
  DroppedSteps all;
  for (const Member& member : members_) {
    const DroppedSteps dropped = member.reader->dropped();
    all.count += dropped.count;
    all.given_up += dropped.given_up;
    all.last = std::max(all.last, dropped.last);
  }
  return all;
}

const JoinedReaders::Member* JoinedReaders::poll_all(Step step) {
  const Member* late = nullptr;
  for (const Member& member : members_) {
    if (late != nullptr && MOETAP_OFF("H35 all in turn")) break;
    if (member.reader->poll() < step && late == nullptr) late = &member;
  }
  return late;
}

const JoinedReaders::Member* JoinedReaders::find_dead(Step step) {
  for (const Member& member : members_) {
    SlotReadTransport& reader = *member.reader;
    // A worker that died may have handed over a last record just before.
    if (!reader.worker_alive() && reader.poll() < step) return &member;
  }
  return nullptr;
}

void JoinedReaders::wait_for(Step step, Milliseconds timeout) {
  const auto start = Clock::now();
  for (const Member* late = poll_all(step); late != nullptr; late = poll_all(step)) {
    const auto waited = Clock::now() - start;
    // Its worker may be alive and wait for the one that died.
    if (const Member* dead = find_dead(step)) throw_timeout(*dead, step, waited);
    if (waited >= timeout) throw_timeout(*late, step, waited);
    pause_for(waited);
  }
  std::optional<StepFailed> failed;
  for (const Member& member : members_) {
    try {
      member.reader->wait_for(step, Milliseconds(0));
    } catch (const StepFailed& error) {
      if (!failed) failed.emplace(step, fmt::format("in {}: {}", member.name, error.reason()));
    }
  }
  arrived_ = std::max(arrived_, step);
  if (failed) throw StepFailed(*failed);
}

// With the member's own message.
void JoinedReaders::throw_timeout(const Member& member, Step step,
                                  std::chrono::nanoseconds waited) const {
  const auto ms = std::chrono::duration_cast<Milliseconds>(waited).count();
  try {
    member.reader->wait_for(step, Milliseconds(0));
  } catch (const TimeoutError& error) {
    throw TimeoutError(fmt::format("after {} ms for step {} of all {} ranks, of {}: {}", ms, step,
                                   members_.size(), member.name, error.what()));
  } catch (const StepFailed&) {  // it has just arrived
  }
  throw TimeoutError(fmt::format(
      "after {} ms for step {} of all {} ranks, {} has only just come to it: wait again", ms, step,
      members_.size(), member.name));
}

}  // namespace moetap::detail
