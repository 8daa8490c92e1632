#include "gpu/transport/step_pipeline.h"

#include <moetap/step_record.h>

#include <fmt/format.h>

#include <utility>

#include "gpu/capture/owner_name.h"
#include "lib/internal/injection.h"

namespace moetap {

StepPipeline::StepPipeline(Device& device, const Endpoint& endpoint, int staging_depth,
                           int max_in_flight, Sink sink)
    : num_slots_(endpoint.num_slots),
      sink_(std::move(sink)),
      cache_(device, endpoint.shape, endpoint.max_tokens, owner_name(endpoint)),
      wanted_(endpoint.max_tokens),
      in_flight_(static_cast<std::size_t>(max_in_flight)),
      lists_(device.allocate_pinned(in_flight_.size() *
                                    WantedTokens::list_bytes(endpoint.max_tokens))),
      copies_(device.make_stream()) {
  if (staging_depth < 1) {
    throw ArgumentError(
        fmt::format("staging_depth is {}: a snapshot needs at least one buffer to "
                    "go to (2 let a copy and the next snapshot overlap)",
                    staging_depth));
  }
  const std::size_t bytes = StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes;
  for (int i = 0; i < staging_depth; ++i) {
    staging_.push_back({device.allocate(bytes),
                        device.allocate(WantedTokens::list_bytes(endpoint.max_tokens)),
                        device.make_event(), device.make_event()});
  }
}

void StepPipeline::begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) {
  cache_.begin_step(step.step, step.num_tokens, dp_row, stream);
  step_ = step.step;
  wanted_.set(step);
}

void StepPipeline::publish(const Slot* slot_mapping, std::byte* record, Stream& stream) {
  Staging& staging = staging_[num_published_ % staging_.size()];
  const std::size_t place = num_published_ % in_flight_.size();
  InFlight& in_flight = in_flight_[place];
  in_flight = {.pipeline = this,
               .step = step_,
               .num_tokens = wanted_.count(),
               .record = record,
               .bytes = StepRecordLayout(shape(), wanted_.count()).bytes};

  if (!MOETAP_OFF("H15 the snapshot after the copy")) stream.wait(*staging.copied);
  const std::uint32_t* tokens = nullptr;
  if (!wanted_.all()) {
    auto* list = lists_.as<std::uint32_t>(place * WantedTokens::list_bytes(max_tokens()));
    wanted_.list(list);
    stream.copy(staging.tokens.data(), list, WantedTokens::list_bytes(wanted_.count()));
    tokens = staging.tokens.as<const std::uint32_t>();
  }
  cache_.snapshot(slot_mapping, wanted_.count(), num_slots_, staging.record.data(), stream, tokens);
  stream.record(*staging.taken);

  if (!MOETAP_OFF("H15 the copy after the snapshot")) copies_->wait(*staging.taken);
  copies_->copy(record, staging.record.data(), in_flight.bytes);
  copies_->record(*staging.copied);
  copies_->call(&StepPipeline::arrive, &in_flight);

  MOETAP_POINT("publish queued");
  ++num_published_;
  published_step_ = step_;
}

void StepPipeline::arrive(void* in_flight) noexcept {
  // A copy: once the sink has let go of the record, the next publish() may reuse the original.
  const InFlight arrived = *static_cast<const InFlight*>(in_flight);
  StepPipeline& self = *arrived.pipeline;
  const StepRecordView record(self.shape(), arrived.num_tokens, {arrived.record, arrived.bytes});
  const StepFault fault = checked_fault(record, self.shape(), arrived.step, self.num_slots_);
  if (fault) self.failures_.add(arrived.step, fault.text());
  MOETAP_POINT("hand-over arrived");
  self.sink_({arrived.step, arrived.num_tokens, arrived.record, fault});
  self.arrived_.store(arrived.step, std::memory_order_release);
  self.num_arrived_.fetch_add(1, std::memory_order_release);
}

void StepPipeline::give_up(Stream& stream) noexcept {
  failures_.add(step_, kGivenUp);
  cache_.abandon_step(stream);
}

}  // namespace moetap
