// The reasons why steps have no rows, kept until the worker takes them. Nothing here allocates when
// a step fails: a device's callback could not report that memory is short.
#pragma once

#include <moetap/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "lib/internal/step_record.h"

namespace moetap {

inline constexpr std::string_view kGivenUp =
    "the worker gave it up before it was published, as when its forward pass threw";

// A text in its own fixed memory; empty for a step without a fault.
class StepFault {
 public:
  StepFault() = default;
  explicit StepFault(std::string_view text) noexcept;

  explicit operator bool() const { return size_ > 0; }
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 500> text_;
  std::size_t size_ = 0;
};

// As fault_of(), for callers that must not throw.
StepFault checked_fault(const StepRecordView& record, const ModelShape& shape, Step step,
                        std::int64_t num_slots) noexcept;

// Any thread.
class StepFailures {
 public:
  void add(Step step, std::string_view reason) noexcept;
  std::vector<StepFailed> take();  // the latest kKept failures since the last call, in order
  std::uint64_t count() const;     // ever

 private:
  static constexpr std::size_t kKept = 64;
  struct Failure {
    Step step = 0;
    StepFault fault;
  };

  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::uint64_t taken_ = 0;              // of them, or dropped
  std::array<Failure, kKept> failures_;  // number n at n % kKept
};

}  // namespace moetap
