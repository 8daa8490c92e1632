// What a reader knows about the steps that reached it.
#pragma once

#include <moetap/types.h>

#include <array>
#include <cstddef>
#include <string>

namespace moetap {

// The last step and the failures among the latest ones. Steps come in ascending order.
class StepOutcomes {
 public:
  // Failures that are remembered. The rows of an older failed step are missing all the same.
  static constexpr std::size_t kFailures = 64;

  Step last() const { return last_; }

  // MismatchError unless `step` is above the last one, as a worker's always is.
  void require_next(Step step, const std::string& channel) const;

  void succeeded(Step step) { last_ = step; }
  void failed(Step step, std::string reason);

  // StepFailed if that very step did.
  void require_success(Step step) const;

 private:
  struct Failure {
    Step step = 0;
    std::string reason;
  };
  Step last_ = 0;
  std::array<Failure, kFailures> failures_;
  std::size_t next_ = 0;  // the oldest failure's place
};

}  // namespace moetap
