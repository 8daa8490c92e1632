// How a step that arrived is announced in the ring.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

#include "gpu/transport/step_failures.h"
#include "ipc/internal/channel.h"

namespace moetap {

inline Descriptor step_descriptor(Descriptor::Kind good, Step step, std::int64_t num_tokens,
                                  const StepFault& fault) {
  Descriptor descriptor{
      .kind = fault ? Descriptor::Kind::failed_step : good, .step = step, .num_tokens = num_tokens};
  if (!fault) return descriptor;
  constexpr std::size_t kRoom = sizeof descriptor.text - 1;
  const std::string_view text = fault.text();
  std::memcpy(descriptor.text, text.data(), std::min(text.size(), kRoom));
  if (text.size() > kRoom) std::memcpy(descriptor.text + kRoom - 3, "...", 3);
  return descriptor;
}

}  // namespace moetap
