// The scheduler's end of the device transport: moves each step's rows from the ring into its own
// slot buffer. This happens in calls from the scheduler's one thread, so no lock is needed.
#include <moetap/error.h>
#include <moetap/lease.h>
#include <moetap/read_transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/internal/slot_lists.h"
#include "ipc/ring/record_stream.h"
#include "ipc/system/private_copy.h"
#include "ipc/system/private_memory.h"
#include "ipc/table/slot_buffer.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/internal/step_record.h"

namespace moetap {
namespace {

class DeviceReader final : public SlotReadTransport {
 public:
  explicit DeviceReader(const Endpoint& endpoint)
      : stream_(endpoint),
        memory_(SlotBuffer::bytes(endpoint.num_slots, endpoint.shape.row_bytes())),
        buffer_(memory_.bytes(), endpoint.num_slots, endpoint.shape.row_bytes(),
                endpoint.max_tokens),
        captured_(static_cast<std::size_t>(endpoint.shape.num_layers())),
        slots_(static_cast<std::size_t>(endpoint.max_tokens)) {}

  const ModelShape& shape() const override { return stream_.endpoint().shape; }
  bool worker_alive() override { return stream_.producer_alive(); }
  DroppedSteps dropped() override { return stream_.outcomes().dropped(); }
  std::int64_t num_slots() const override { return stream_.endpoint().num_slots; }

  Step poll() override {
    const bool lent = leases_.size() > 0 && !MOETAP_OFF("H25 no step while rows are lent");
    while (!lent && stream_.next([this](const auto& item) { take_in(item); })) {
    }
    return stream_.outcomes().last();
  }

  void wait_for(Step step, Milliseconds timeout) override {
    const auto deadline = deadline_after(timeout);
    if (stream_.outcomes().last() < step && !leases_.wait_until_back(deadline)) {
      throw TimeoutError(fmt::format(
          "waited {} ms for step {} of {}, which is not read while rows are lent: {}. detach() "
          "views before the next step is needed",
          timeout.count(), step, stream_.name(), leases_.describe()));
    }
    const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
    stream_.until_step(step, left, [this](const auto& item) { take_in(item); });
  }

  // Reads what earlier wait_for() and poll() calls took in. A step that still waits in the ring
  // cannot overwrite anything yet.
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override {
    check_arrived(windows, stream_.outcomes().last());
    lose_dropped();
    buffer_.gather(slots, windows, rows, states);
  }

  void stamps(std::span<const Slot> slots, std::span<Step> written) override {
    buffer_.stamps(slots, written);
  }

  std::optional<Lease> lend(std::span<const Slot> slots, std::span<const StepWindow> windows,
                            std::span<const std::byte*> rows, std::span<RowState> states,
                            const std::string& holder) override {
    check_read(buffer_.limits(), slots, windows.size(), rows.size() * buffer_.limits().row_bytes,
               states.size());
    check_arrived(windows, stream_.outcomes().last());
    Lease lease = leases_.lend(holder);
    lose_dropped();
    buffer_.point_at(slots, windows, rows, states);
    return lease;
  }

  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override {
    if (leases_.size() > 0 && !MOETAP_OFF("H25 no put while rows are lent")) {
      throw StateError(fmt::format("put() while rows are lent: {}. detach() views before rows move",
                                   leases_.describe()));
    }
    check_put(buffer_.limits(), step, slots, rows.size(), states.size());
    buffer_.put_in(step, slots, rows, states);
  }

 private:
  void take_in(const RecordStream::Item& item);
  void lose_dropped();
  std::optional<std::string> copy_in(const Descriptor& descriptor, const StepRecordView& record);

  RecordStream stream_;
  PrivateMemory memory_;
  SlotBuffer buffer_;
  // Private copies of a record's slots and stamps, so that what was checked is what is used,
  // whatever happens to the shared memory meanwhile.
  StepReport report_{};
  std::vector<Step> captured_;
  std::vector<MarkedSlot> slots_;
  // Last member, so destroyed first: from then on no lease touches the ring.
  LeaseBook leases_{[this](std::size_t leases, const LeaseBook::Entry* oldest) {
    stream_.show_leases(leases, oldest);
  }};
};

// The slots that a dropped step has written are not known. Steps dropped before a record come
// before it.
void DeviceReader::lose_dropped() {
  const DropRun run = stream_.outcomes().last_run();
  if (run.last <= buffer_.last_step()) return;
  buffer_.lose(run.first, run.last);
  buffer_.set_last_step(run.last);
}

void DeviceReader::take_in(const RecordStream::Item& item) {
  using Kind = Descriptor::Kind;
  const Descriptor& descriptor = item.descriptor;
  if (descriptor.kind != Kind::step && descriptor.kind != Kind::failed_step) {
    stream_.throw_unexpected(
        item,
        "its worker keeps rows per request (HostCache::per_request), use make_request_reader");
  }
  stream_.outcomes().require_next(descriptor.step, stream_.name());
  lose_dropped();

  StepRecordView record(shape(), descriptor.num_tokens, item.bytes);
  report_ = private_copy(*record.report);
  private_copy<Step>(record.captured, captured_);
  private_copy<MarkedSlot>(record.slots, slots_);
  record.report = &report_;
  record.captured = captured_;
  record.slots = std::span(slots_).first(record.slots.size());

  const std::optional<std::string> fault = descriptor.kind == Kind::failed_step
                                               ? std::string(descriptor.text)
                                               : copy_in(descriptor, record);
  try {
    stream_.require_unchanged();
  } catch (...) {
    buffer_.invalidate(record.slots);
    throw;
  }
  if (!fault) {
    buffer_.stamp(descriptor.step, record.slots);
    buffer_.set_last_step(descriptor.step);
    return stream_.outcomes().succeeded(descriptor.step);
  }
  // The forward pass has written new keys and values to these slots, so their older rows are gone.
  if (!buffer_.invalidate(record.slots) || !has_slots(record, descriptor.step)) {
    buffer_.lose(descriptor.step, descriptor.step);
  }
  buffer_.set_last_step(descriptor.step);
  stream_.outcomes().failed(descriptor.step, *fault);
}

// The worker has already checked the record, but this end does not trust it. Returns why the step
// failed, or nothing: its rows then lack only their stamps.
std::optional<std::string> DeviceReader::copy_in(const Descriptor& descriptor,
                                                 const StepRecordView& record) {
  if (auto fault = fault_of(record, shape(), descriptor.step, num_slots())) return fault;
  try {
    buffer_.copy_in(descriptor.step, record.slots, record.rows);
  } catch (const ArgumentError& error) {  // a slot that comes twice
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<SlotReadTransport> make_device_reader(const Endpoint& endpoint) {
  return std::make_unique<DeviceReader>(endpoint);
}

}  // namespace moetap
