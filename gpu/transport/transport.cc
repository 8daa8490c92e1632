#include <moetap/transport.h>

#include "gpu/transport/step_failures.h"

namespace moetap {

Transport::Transport(Device& device, const Endpoint& endpoint)
    : device_(device), endpoint_(endpoint), failures_(std::make_unique<StepFailures>()) {
  endpoint.validate();
}

Transport::~Transport() = default;

std::vector<StepFailed> Transport::take_failures() { return failures_->take(); }

std::uint64_t Transport::num_failed() const { return failures_->count(); }

}  // namespace moetap
