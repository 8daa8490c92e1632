#include "gpu/transport/step_failures.h"

#include <algorithm>
#include <exception>
#include <string>

namespace moetap {

StepFault::StepFault(std::string_view text) noexcept : size_(std::min(text.size(), text_.size())) {
  std::copy_n(text.data(), size_, text_.data());
  if (size_ < text.size()) std::fill_n(text_.end() - 3, 3, '.');
}

StepFault checked_fault(const StepRecordView& record, const ModelShape& shape, Step step,
                        std::int64_t num_slots) noexcept {
  try {
    const auto fault = fault_of(record, shape, step, num_slots);
    return fault ? StepFault(*fault) : StepFault();
  } catch (const std::exception&) {  // only what has a fault allocates
    return StepFault("something is wrong with it, and there was no memory to say what");
  }
}

void StepFailures::add(Step step, std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  failures_[count_++ % kKept] = {step, StepFault(reason)};
}

std::vector<StepFailed> StepFailures::take() {
  const std::lock_guard lock(mutex_);
  std::vector<StepFailed> taken;
  if (count_ == taken_) return taken;
  const std::uint64_t first = std::max(taken_, count_ - std::min<std::uint64_t>(count_, kKept));
  taken.reserve(static_cast<std::size_t>(count_ - first));
  for (std::uint64_t i = first; i < count_; ++i) {
    const Failure& failure = failures_[i % kKept];
    taken.emplace_back(failure.step, std::string(failure.fault.text()));
  }
  taken_ = count_;
  return taken;
}

std::uint64_t StepFailures::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

}  // namespace moetap
