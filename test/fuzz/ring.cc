// A ring whose bytes anyone may have written: both kinds of reader and the worker's end go on using
// it, and meet nothing but exceptions.
#include "ipc/internal/ring.h"

#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "test/fuzz/scribble.h"

using namespace moetap;

namespace {

using Kind = Descriptor::Kind;

class Fuzzed {
 public:
  explicit Fuzzed(fuzz::Input& input) : input_(input), producer_(endpoint_) {}

  void run() {
    const bool by_request = (input_.take<std::uint8_t>() & 1) != 0;
    fuzz::may_refuse([&] { attach(by_request); });
    for (int i = 0; i < 64 && !input_.empty(); ++i) fuzz::may_refuse([&] { act(); });
  }

 private:
  void attach(bool by_request) {
    if (by_request) {
      by_request_ = make_request_reader(endpoint_);
    } else {
      by_slot_ = make_device_reader(endpoint_);
    }
  }

  void act() {
    switch (input_.take<std::uint8_t>() % 6) {
      case 0:
        return fuzz::scribble(producer_.memory(), input_);
      case 1:
        return send();
      case 2:
        return take_in();
      case 3:
        return read();
      case 4: {  // a reader ends and another takes over
        const bool was_by_request = by_request_ != nullptr;
        by_request_.reset();
        by_slot_.reset();
        return attach(!was_by_request);
      }
      default:
        return producer_.wait_committed(Milliseconds(0));
    }
  }

  // What a worker of ours may send; scribbling makes the rest of it.
  void send() {
    const auto record = producer_.acquire();
    Descriptor descriptor{.kind = static_cast<Kind>(input_.take<std::uint8_t>() % 5),
                          .step = ++step_,
                          .num_tokens = input_.take<std::uint8_t>() % 5,
                          .request = RequestId(input_.take<std::uint8_t>() % 3u),
                          .position = input_.take<std::uint8_t>()};
    if (descriptor.kind == Kind::step || descriptor.kind == Kind::failed_step) {
      const StepRecordView view(endpoint_.shape, descriptor.num_tokens, record);
      *view.report = {};
      view.report->step = step_;
      view.report->num_tokens = view.report->step_tokens = descriptor.num_tokens;
      std::ranges::fill(view.captured, step_);
      for (MarkedSlot& slot : view.slots) slot = MarkedSlot(Slot(input_.take<std::int8_t>() % 16));
    }
    producer_.commit(descriptor);
  }

  void take_in() {
    const Step step = step_;
    if (by_slot_) by_slot_->poll();
    if (by_slot_) by_slot_->wait_for(step, Milliseconds(0));
    if (by_request_) by_request_->wait_for(step, Milliseconds(0));
  }

  void read() {
    constexpr std::array<Slot, 4> slots{0, 1, 5, 15};
    std::array<RowState, 4> states{};
    std::vector<std::byte> rows(slots.size() * endpoint_.shape.row_bytes());
    if (by_slot_) by_slot_->read(slots, std::array{StepWindow{}}, rows, states);
    const RequestId request(input_.take<std::uint8_t>() % 3);
    if (by_request_) by_request_->take(request, {2, 6}, rows, states, Milliseconds(0));
  }

  Endpoint endpoint_{.instance = "fuzz-" + std::to_string(getpid()),
                     .shape = ModelShape::uniform(2, 2, 16),
                     .num_slots = 16,
                     .max_tokens = 4,
                     .ring_depth = 2,
                     .timeout = Milliseconds(0)};
  fuzz::Input& input_;
  ChannelProducer producer_;
  std::unique_ptr<SlotReadTransport> by_slot_;
  std::unique_ptr<RequestReadTransport> by_request_;
  Step step_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input({data, size});
  Fuzzed(input).run();
  return 0;
}
