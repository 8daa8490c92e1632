#include "gpu/transport/step_pipeline.h"

#include <fmt/format.h>

#include <utility>

#include "lib/internal/injection.h"
#include "lib/internal/step_record.h"

namespace moetap {

StepPipeline::StepPipeline(Device& device, const Endpoint& endpoint, int staging_depth,
                           int max_in_flight, StepFailures& failures, Sink sink)
    : shape_(endpoint.shape),
      num_slots_(endpoint.num_slots),
      list_bytes_(WantedTokens::list_bytes(endpoint.max_tokens)),
      failures_(failures),
      sink_(std::move(sink)),
      in_flight_(static_cast<std::size_t>(max_in_flight)),
      lists_(device.allocate_pinned(in_flight_.size() * list_bytes_)),
      copies_(device.make_stream()) {
  constexpr int kMost = 1024;
  if (staging_depth < 1 || staging_depth > kMost) {
    throw ArgumentError(
        fmt::format("staging_depth is {}; allowed are 1 to {} buffers for snapshots (2 let a copy "
                    "and the next snapshot overlap)",
                    staging_depth, kMost));
  }
  const std::size_t bytes = StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes;
  for (int i = 0; i < staging_depth; ++i) {
    staging_.push_back({device.allocate(bytes), device.allocate(list_bytes_), device.make_event(),
                        device.make_event()});
  }
}

void StepPipeline::publish(const Snapshot& step, std::byte* record, Stream& stream) {
  Staging& staging = staging_[num_published_ % staging_.size()];
  const std::size_t place = num_published_ % in_flight_.size();
  InFlight& in_flight = in_flight_[place];
  in_flight = {.pipeline = this,
               .step = step.step(),
               .num_tokens = step.num_rows(),
               .record = record,
               .bytes = StepRecordLayout(shape_, step.num_rows()).bytes};

  if (!MOETAP_OFF("H15 the snapshot after the copy")) stream.wait(*staging.copied);
  step.write(staging.record.data(), num_slots_,
             {lists_.as<std::uint32_t>(place * list_bytes_), staging.tokens.as<std::uint32_t>()},
             stream);
  stream.record(*staging.taken);

  if (!MOETAP_OFF("H15 the copy after the snapshot")) copies_->wait(*staging.taken);
  copies_->copy(record, staging.record.data(), in_flight.bytes);
  copies_->record(*staging.copied);
  copies_->call(&StepPipeline::arrive, &in_flight);

  MOETAP_POINT("publish queued");
  ++num_published_;
  published_step_ = step.step();
}

void StepPipeline::arrive(void* in_flight) noexcept {
  // A copy: once the sink has released the record, the next publish() may reuse the original.
  const InFlight arrived = *static_cast<const InFlight*>(in_flight);
  StepPipeline& self = *arrived.pipeline;
  const StepRecordView record(self.shape_, arrived.num_tokens, {arrived.record, arrived.bytes});
  const StepFault fault = checked_fault(record, self.shape_, arrived.step, self.num_slots_);
  if (fault) self.failures_.add(arrived.step, fault.text());
  MOETAP_POINT("hand-over arrived");
  self.sink_({arrived.step, arrived.num_tokens, arrived.record, fault});
  self.arrived_.store(arrived.step, std::memory_order_release);
  self.num_arrived_.fetch_add(1, std::memory_order_release);
}

}  // namespace moetap
