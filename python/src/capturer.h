// The Capturer as Python has it, with the stream of the open step and copies of host arrays.
#pragma once

#include <moetap/capturer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/src/device.h"
#include "python/src/device_input.h"

namespace moetap::python {

class PyCapturer : public Guarded<Capturer> {
 public:
  PyCapturer(std::unique_ptr<Capturer> capturer, std::shared_ptr<PyDevice> device, std::string what,
             Milliseconds timeout)
      : Guarded(std::move(capturer), std::move(what)),
        device_(std::move(device)),
        timeout_(timeout),
        uploads_(std::make_unique<Uploads>(device_)),
        made_in_(forks()) {}
  ~PyCapturer() {
    *open_ = false;
    destroy();
    if (made_in_ != forks()) static_cast<void>(uploads_.release());  // as Guarded does
  }

  const std::shared_ptr<PyDevice>& device() const { return device_; }
  Milliseconds timeout(const Timeout& given) const { return given ? given->ms() : timeout_; }

  void close() {
    Guarded::close();
    *open_ = false;
  }

  void begin_step(const StepInfo& step, nb::handle stream);
  // The step that is open, or 0.
  Step open_step() const { return open_step_; }
  void capture(int layer, nb::handle topk_ids, nb::handle weights);
  void publish(nb::handle slot_mapping);
  void give_up();
  void begin_graph(std::int64_t padded_tokens, nb::handle stream);
  void end_graph();

 private:
  std::shared_ptr<PyStream> stream_for(nb::handle given);
  PyStream& open_stream(const char* call);
  const Slot* slots_of(nb::handle slot_mapping, PyStream& stream);

  std::shared_ptr<PyDevice> device_;
  Milliseconds timeout_;
  std::unique_ptr<Uploads> uploads_;
  std::uint64_t made_in_;
  std::shared_ptr<PyStream> own_stream_;  // of a host device, if none is given
  std::shared_ptr<PyStream> stream_;      // of the open step or graph
  Step open_step_ = 0;
  std::int64_t num_tokens_ = 0;                                // of the open step
  std::shared_ptr<bool> open_ = std::make_shared<bool>(true);  // known to recorded graphs too
  bool in_graph_ = false;
  nb::object slot_mapping_;  // that publish() was given; the step may be given up with it
  const Slot* slots_ = nullptr;
};

// capturer_steps.cc
void bind_guards(nb::module_& m);
void add_steps(nb::class_<PyCapturer>& capturer);

// capturer_options.cc: makes the transport and the Capturer of Python's arguments.
void add_constructor(nb::class_<PyCapturer>& capturer);

}  // namespace moetap::python
