// The `shm` transport's worker end: snapshot, blocking copy, scatter under the lock.
#include <moetap/error.h>
#include <moetap/transport.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/capture/outside_graph.h"
#include "gpu/capture/snapshot_kernel.h"
#include "gpu/internal/snapshot.h"
#include "gpu/transport/step_failures.h"
#include "ipc/internal/shm_writer.h"
#include "lib/internal/injection.h"
#include "lib/internal/step_record.h"

namespace moetap {
namespace {

class ShmTransport final : public Transport {
 public:
  ShmTransport(Device& device, const Endpoint& endpoint)
      : Transport(device, endpoint),
        writer_(endpoint),
        staging_(device.allocate(StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes)),
        host_(device.allocate_pinned(staging_.size())),
        list_(device.allocate_pinned(WantedTokens::list_bytes(endpoint.max_tokens))),
        tokens_(device.allocate(list_.size())) {
    given_up_slots_.reserve(
        static_cast<std::size_t>(std::max<std::int64_t>(1, endpoint.max_tokens)));
  }

  void begin(const StepInfo&) override { tell_given_up(); }

  void deliver(const Snapshot& step, Stream& stream) override {
    require_outside_graph(stream, "publish()");
    step.write(staging_.data(), endpoint().num_slots,
               {list_.as<std::uint32_t>(), tokens_.as<std::uint32_t>()}, stream);
    const ModelShape& shape = endpoint().shape;
    stream.copy(host_.data(), staging_.data(), StepRecordLayout(shape, step.num_rows()).bytes);
    stream.synchronize();
    MOETAP_POINT("publish copied to the host");

    const StepRecordView record(shape, step.num_rows(), {host_.data(), host_.size()});
    if (const auto fault = fault_of(record, shape, step.step(), endpoint().num_slots)) {
      return fail(step.step(), record, *fault);
    }
    try {
      writer_.publish(step.step(), record.slots, record.rows);
    } catch (const std::logic_error& refused) {  // only the writer checks for repeated slots
      fail(step.step(), record, refused.what());
    } catch (const MismatchError& overwritten) {  // by another process; the next step works
      fail(step.step(), record, overwritten.what());
    }
  }

  void give_up(const Snapshot& step, std::string_view why, Stream& stream) noexcept override {
    given_up_ = step.step();
    why_ = StepFault(why);
    given_up_slots_.assign(1, kBadSlot);  // until they are known
    try {
      if (step.slot_mapping() != nullptr) take_slots(step, stream);
    } catch (const std::exception&) {
      // The stream accepts no work: it records a graph, or the device is broken.
    }
    try {
      tell_given_up();
    } catch (const std::exception&) {
      // begin() of the next step reports it.
    }
  }

  void finalize(Step, Milliseconds) override { tell_given_up(); }  // deliver() has blocked

 private:
  void fail(Step step, const StepRecordView& record, const std::string& reason) {
    constexpr MarkedSlot kUnknown[] = {kBadSlot};
    const auto slots =
        has_slots(record, step) ? std::span<const MarkedSlot>(record.slots) : kUnknown;
    writer_.fail(step, slots, reason);
    failures().add(step, reason);
  }

  void tell_given_up() {
    if (given_up_ == 0) return;
    writer_.fail(given_up_, given_up_slots_, std::string(why_.text()));
    failures().add(std::exchange(given_up_, Step()), why_.text());
  }

  // The slots of the wanted tokens, on the host.
  void take_slots(const Snapshot& step, Stream& stream) {
    require_outside_graph(stream, "give_up()");
    stream.copy(host_.data(), step.slot_mapping(),
                static_cast<std::size_t>(step.num_tokens()) * sizeof(Slot));
    stream.synchronize();
    given_up_slots_.clear();
    const auto* slots = host_.as<const Slot>();
    auto* list = list_.as<std::uint32_t>();
    const WantedTokens& wanted = step.wanted();
    if (!wanted.all()) wanted.list(list);
    for (std::int64_t i = 0; i < wanted.count(); ++i) {
      const Slot slot = slots[wanted.all() ? i : list[i]];
      const bool exists = slot >= 0 && slot < Slot(endpoint().num_slots);
      given_up_slots_.push_back(exists ? MarkedSlot(slot) : kBadSlot);
    }
  }

  ShmWriter writer_;
  Buffer staging_;     // a StepRecord on the device
  Buffer host_;        // its copy
  Buffer list_;        // of the wanted tokens, if not all are wanted: deliver() waits until it was
                       // read
  Buffer tokens_;      // its copy on the device
  Step given_up_ = 0;  // the previous step, if the reader could not be told of it
  StepFault why_;      // it was given up
  std::vector<MarkedSlot> given_up_slots_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(Device& device, const Endpoint& endpoint) {
  return std::make_unique<ShmTransport>(device, endpoint);
}

}  // namespace moetap
