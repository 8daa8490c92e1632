#include "ipc/internal/shm_writer.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include "ipc/internal/names.h"
#include "ipc/internal/shm_ends.h"
#include "ipc/system/fork_guard.h"
#include "lib/internal/export.h"
#include "lib/internal/number_format.h"

namespace moetap {

struct MOETAP_HIDDEN ShmWriter::State {
  std::string name;
  std::unique_ptr<ShmSink> sink;
  Maker maker;
  Step last_step = 0;

  void require_may_write(Step step) const {
    maker.require("the ShmWriter of ", name);
    if (step > last_step) return;
    throw ArgumentError(fmt::format(
        "step {} is not above the last step {}: steps are numbered 1, 2, 3 ... and never again",
        step, last_step));
  }
};

ShmWriter::ShmWriter(const Endpoint& endpoint) : state_(std::make_unique<State>()) {
  endpoint.validate();
  state_->name = buffer_name(endpoint);
  state_->sink =
      endpoint.layout == ShmLayout::wire ? make_wire_sink(endpoint) : make_native_sink(endpoint);
}

ShmWriter::~ShmWriter() = default;

void ShmWriter::publish(Step step, std::span<const MarkedSlot> slots,
                        std::span<const std::byte> rows) {
  state_->require_may_write(step);
  state_->sink->publish(step, slots, rows);
  state_->last_step = step;
}

void ShmWriter::fail(Step step, std::span<const MarkedSlot> slots, const std::string& reason) {
  state_->require_may_write(step);
  state_->sink->fail(step, slots, reason);
  state_->last_step = step;
}

LockTimes ShmWriter::lock_times() const { return state_->sink->lock_times(); }

}  // namespace moetap
