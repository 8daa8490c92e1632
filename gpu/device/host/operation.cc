#include "gpu/device/host/operation.h"

#include <moetap/error.h>

#include <fmt/format.h>

namespace moetap::host {
namespace {

thread_local bool in_callback = false;

void run(const Wait& wait) noexcept { wait.point.timeline->wait(wait.point.count); }

void run(const Stop&) noexcept {}

void run(const Replay& replay) noexcept {
  for (const Operation& operation : replay.recording->operations) run(operation);
}

}  // namespace

// None of these may throw: work on a device cannot report errors, so an exception in a kernel or
// callback ends the program.
void run(const Copy& copy) noexcept {
  if (copy.bytes != 0) std::memcpy(copy.to, copy.from, copy.bytes);
}

void run(const Fill& fill) noexcept {
  if (fill.bytes != 0) std::memset(fill.to, fill.value, fill.bytes);
}

void run(const Call& call) noexcept {
  in_callback = true;
  call.callback(call.argument);
  in_callback = false;
}

void run(const KernelCall& call) noexcept {
  const auto entry = call.entry().host;
  const void* const arguments = call.arguments();
  for (std::int64_t block = 0; block < call.blocks(); ++block) {
    entry(arguments, {.index = block, .lane = 0, .lanes = 1});
  }
}

void run(const Operation& operation) noexcept {
  std::visit([](const auto& one) { run(one); }, operation);
}

void refuse_in_callback(const char* what) {
  if (!in_callback) return;
  throw StateError(fmt::format(
      "{} from a stream's callback: callbacks must not call the device, since the stream cannot go "
      "on before they return; hand the work to another thread",
      what));
}

}  // namespace moetap::host
