// The `shm` transport's worker end: snapshot, blocking copy, scatter under the lock.
#include <moetap/device_cache.h>
#include <moetap/error.h>
#include <moetap/shm_writer.h>
#include <moetap/step_record.h>
#include <moetap/transports.h>

#include <exception>

#include "../../lib/src/injection.h"
#include "outside_graph.h"
#include "owner_name.h"
#include "wanted_tokens.h"

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
        tokens_(device.allocate(list_.size())) {}

  const ModelShape& shape() const override { return cache_.shape(); }
  std::int64_t max_tokens() const override { return cache_.max_tokens(); }

  void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) override {
    cache_.begin_step(step.step, step.num_tokens, dp_row, stream);
    step_ = step.step;
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
    if (const auto fault = fault_of(record, shape(), step_, num_slots_)) fail(record, *fault);
    try {
      writer_.publish(step_, record.slots, record.rows);
    } catch (const std::logic_error& refused) {  // what only the writer checks: a slot twice
      fail(record, refused.what());
    } catch (const MismatchError& overwritten) {  // by another process; the next step goes on
      fail(record, overwritten.what());
    }
  }

  void finalize(Step, Milliseconds) override {}  // publish() has blocked
  void end_request(std::uint64_t, RequestEnd) override {}

 private:
  [[noreturn]] void fail(const StepRecordView& record, const std::string& reason) {
    writer_.fail(step_, record.slots, reason);
    throw StepFailed(step_, reason);
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
};

}  // namespace

std::unique_ptr<CaptureTransport> make_shm_transport(Device& device, const Endpoint& endpoint) {
  endpoint.validate();
  return std::make_unique<ShmTransport>(device, endpoint);
}

}  // namespace moetap
