// The `shm` transport's worker end: snapshot, blocking copy, scatter under the lock.
#include <moetap/device_cache.h>
#include <moetap/error.h>
#include <moetap/shm_writer.h>
#include <moetap/step_record.h>
#include <moetap/topk_ids.h>
#include <moetap/transports.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/capture/outside_graph.h"
#include "gpu/capture/owner_name.h"
#include "gpu/capture/snapshot_kernel.h"
#include "gpu/internal/wanted_tokens.h"
#include "gpu/transport/step_failures.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

class ShmTransport final : public CaptureTransport {
 public:
  ShmTransport(Device& device, const Endpoint& endpoint)
      : num_slots_(endpoint.num_slots),
        writer_(endpoint),
        cache_(device, endpoint.shape, endpoint.max_tokens, owner_name(endpoint)),
        staging_(device.allocate(StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes)),
        host_(device.allocate_pinned(staging_.size())),
        wanted_(endpoint.max_tokens),
        list_(device.allocate_pinned(WantedTokens::list_bytes(endpoint.max_tokens))),
        tokens_(device.allocate(list_.size())) {
    given_up_slots_.reserve(
        static_cast<std::size_t>(std::max<std::int64_t>(1, endpoint.max_tokens)));
  }

  const ModelShape& shape() const override { return cache_.shape(); }
  std::int64_t max_tokens() const override { return cache_.max_tokens(); }

  void compare_all_picks() override { cache_.compare_all_picks(); }

  void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) override {
    tell_given_up();
    cache_.begin_step(step.step, step.num_tokens, dp_row, stream);
    step_ = step.step;
    num_tokens_ = step.num_tokens;
    wanted_.set(step);
  }

  void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
               Stream& stream) override {
    cache_.capture(layer, topk_ids, first_row, stream);
  }

  void route_sink(int layer, std::int64_t first_row, std::int64_t end_row, int shared_columns,
                  RouteSink& sink) override {
    sink = cache_.sink(layer, first_row, end_row, shared_columns);
  }
  RouteOutput route_output(int layer) override { return cache_.route_output(layer); }

  void publish(const Slot* slot_mapping, Stream& stream) override {
    require_outside_graph(stream, "publish()");
    const std::int64_t rows = wanted_.count();
    const std::uint32_t* tokens = nullptr;
    if (!wanted_.all()) {
      wanted_.list(list_.as<std::uint32_t>());
      stream.copy(tokens_.data(), list_.data(), WantedTokens::list_bytes(rows));
      tokens = tokens_.as<const std::uint32_t>();
    }
    cache_.snapshot(slot_mapping, rows, num_slots_, staging_.data(), stream, tokens);
    stream.copy(host_.data(), staging_.data(), StepRecordLayout(shape(), rows).bytes);
    stream.synchronize();
    MOETAP_POINT("publish copied to the host");

    const StepRecordView record(shape(), rows, {host_.data(), host_.size()});
    if (const auto fault = fault_of(record, shape(), step_, num_slots_)) {
      return fail(record, *fault);
    }
    try {
      writer_.publish(step_, record.slots, record.rows);
    } catch (const std::logic_error& refused) {  // what only the writer checks: a slot twice
      fail(record, refused.what());
    } catch (const MismatchError& overwritten) {  // by another process; the next step goes on
      fail(record, overwritten.what());
    }
  }

  void skip_step(Stream& stream) override { cache_.end_step(stream); }

  void give_up(const Slot* slot_mapping, Stream& stream) noexcept override {
    given_up_ = step_;
    given_up_slots_.assign(1, kBadSlot);  // until they are known
    try {
      if (slot_mapping != nullptr) take_slots(slot_mapping, stream);
      cache_.end_step(stream);
    } catch (const std::exception&) {
      // The stream takes no work: it records a graph, or the device is broken.
    }
    try {
      tell_given_up();
    } catch (const std::exception&) {
      // Whoever begins the next step is told.
    }
  }

  std::vector<StepFailed> take_failures() override { return failures_.take(); }
  std::uint64_t num_failed() const override { return failures_.count(); }

  void finalize(Step, Milliseconds) override { tell_given_up(); }  // publish() has blocked
  void end_request(std::uint64_t, RequestEnd) override {}

 private:
  void fail(const StepRecordView& record, const std::string& reason) {
    constexpr Slot kUnknown[] = {kBadSlot};
    const auto slots = has_slots(record, step_) ? std::span<const Slot>(record.slots) : kUnknown;
    writer_.fail(step_, slots, reason);
    failures_.add(step_, reason);
  }

  void tell_given_up() {
    if (given_up_ == 0) return;
    writer_.fail(given_up_, given_up_slots_, std::string(kGivenUp));
    failures_.add(std::exchange(given_up_, 0), kGivenUp);
  }

  // Those of the wanted tokens, on the host.
  void take_slots(const Slot* slot_mapping, Stream& stream) {
    require_outside_graph(stream, "give_up()");
    stream.copy(host_.data(), slot_mapping, static_cast<std::size_t>(num_tokens_) * sizeof(Slot));
    stream.synchronize();
    given_up_slots_.clear();
    const auto* slots = host_.as<const Slot>();
    auto* list = list_.as<std::uint32_t>();
    if (!wanted_.all()) wanted_.list(list);
    for (std::int64_t i = 0; i < wanted_.count(); ++i) {
      const Slot slot = slots[wanted_.all() ? i : list[i]];
      given_up_slots_.push_back(slot < 0 || slot >= num_slots_ ? kBadSlot : slot);
    }
  }

  std::int64_t num_slots_;
  ShmWriter writer_;
  DeviceCache cache_;
  Buffer staging_;  // a StepRecord on the device
  Buffer host_;     // its copy
  WantedTokens wanted_;
  Buffer list_;    // of the wanted tokens where not all are: publish() waits until it was read
  Buffer tokens_;  // its copy on the device
  Step step_ = 0;
  std::int64_t num_tokens_ = 0;
  Step given_up_ = 0;  // the step that was, and of which the reader was not told
  std::vector<Slot> given_up_slots_;
  StepFailures failures_;
};

}  // namespace

std::unique_ptr<CaptureTransport> make_shm_transport(Device& device, const Endpoint& endpoint) {
  endpoint.validate();
  return std::make_unique<ShmTransport>(device, endpoint);
}

}  // namespace moetap
