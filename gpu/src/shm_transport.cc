// The `shm` transport's worker end: snapshot, blocking copy, scatter under the lock.
#include <moetap/device_cache.h>
#include <moetap/error.h>
#include <moetap/shm_writer.h>
#include <moetap/step_record.h>
#include <moetap/transports.h>

#include <exception>

#include "owner_name.h"

namespace moetap {
namespace {

class ShmTransport final : public CaptureTransport {
 public:
  ShmTransport(Device& device, const Endpoint& endpoint)
      : num_slots_(endpoint.num_slots),
        writer_(endpoint),
        cache_(device, endpoint.shape, endpoint.max_tokens, owner_name(endpoint)),
        staging_(device.allocate(StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes)),
        host_(device.allocate_pinned(staging_.size())) {}

  const ModelShape& shape() const override { return cache_.shape(); }
  std::int64_t max_tokens() const override { return cache_.max_tokens(); }

  void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) override {
    cache_.begin_step(step.step, step.num_tokens, dp_row, stream);
    step_ = step.step;
    num_tokens_ = step.num_tokens;
  }

  void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
               Stream& stream) override {
    cache_.capture(layer, topk_ids, first_row, stream);
  }

  void publish(const Slot* slot_mapping, Stream& stream) override {
    cache_.snapshot(slot_mapping, num_tokens_, num_slots_, staging_.data(), stream);
    stream.copy(host_.data(), staging_.data(), StepRecordLayout(shape(), num_tokens_).bytes);
    stream.synchronize();

    const StepRecordView record(shape(), num_tokens_, {host_.data(), host_.size()});
    if (const auto fault = fault_of(record, shape(), step_, num_slots_)) fail(record, *fault);
    try {
      writer_.publish(step_, record.slots, record.rows);
    } catch (const std::logic_error& refused) {  // what only the writer checks: a slot twice
      fail(record, refused.what());
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
  Step step_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace

std::unique_ptr<CaptureTransport> make_shm_transport(Device& device, const Endpoint& endpoint) {
  endpoint.validate();
  return std::make_unique<ShmTransport>(device, endpoint);
}

}  // namespace moetap
