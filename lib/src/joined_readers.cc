#include "joined_readers.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace moetap::detail {

using Clock = std::chrono::steady_clock;

void JoinedReaders::add(std::unique_ptr<SlotReadTransport> reader, std::string name) {
  if (!reader) throw ArgumentError(fmt::format("the transport of {} is null", name));
  if (!members_.empty() && reader->num_slots() != first().num_slots()) {
    throw ArgumentError(fmt::format("{} has {} slots, {} has {}: all use the same slot numbers",
                                    name, reader->num_slots(), members_.front().name,
                                    first().num_slots()));
  }
  members_.push_back({std::move(reader), std::move(name)});
}

Step JoinedReaders::last_step() {
  Step least = StepWindow{}.last;
  for (const Member& member : members_) least = std::min(least, member.reader->last_step());
  return arrived_ = std::max(arrived_, least);
}

void JoinedReaders::wait_for(Step step, Milliseconds limit) {
  const auto start = Clock::now();
  std::optional<StepFailed> failed;
  for (const Member& member : members_) {
    const auto spent = std::chrono::floor<Milliseconds>(Clock::now() - start);
    try {
      member.reader->wait_for(step, std::max(limit - spent, Milliseconds(0)));
    } catch (const StepFailed& error) {
      if (!failed) failed.emplace(step, fmt::format("in {}: {}", member.name, error.reason()));
    } catch (const TimeoutError& error) {
      throw TimeoutError(fmt::format("{} ms for all of {}; of {}: {}", limit.count(),
                                     members_.size(), member.name, error.what()));
    }
  }
  arrived_ = std::max(arrived_, step);
  if (failed) throw StepFailed(*failed);
}

void check_read_sizes(std::size_t num_slots, std::size_t num_windows, std::size_t rows_bytes,
                      std::size_t num_states, std::size_t row_bytes) {
  const bool windows_fit = num_windows == 1 || num_windows == num_slots;
  if (windows_fit && num_states == num_slots && rows_bytes == num_slots * row_bytes) return;
  throw ArgumentError(fmt::format(
      "read of {} slots with {} windows into {} bytes and {} states: needed are one "
      "window or one a slot, {} bytes and {} states",
      num_slots, num_windows, rows_bytes, num_states, num_slots * row_bytes, num_slots));
}

}  // namespace moetap::detail
