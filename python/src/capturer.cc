// Capturer: records which experts the router picked, in the worker.
#include "python/src/capturer.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/words.h"

MOETAP_WORDS(moetap::RequestEnd, "how", "'finished', 'preempted', 'aborted'",
             {{"finished", moetap::RequestEnd::finished},
              {"preempted", moetap::RequestEnd::preempted},
              {"aborted", moetap::RequestEnd::aborted}});

namespace moetap::python {

std::shared_ptr<PyStream> PyCapturer::stream_for(nb::handle given) {
  if (!given.is_none()) {
    std::int64_t handle = -1;
    if (stream_ && PyLong_Check(given.ptr()) && nb::try_cast(given, handle) && handle >= 0 &&
        handle == stream_->handle()) {
      return stream_;
    }
    return stream_of(device_, given);
  }
  if (!device_->is_host()) return current_stream(device_);
  if (!own_stream_) {
    own_stream_ = std::make_shared<PyStream>(device_, device_->get().make_stream(),
                                             "the stream of " + what());
  }
  return own_stream_;
}

PyStream& PyCapturer::open_stream(const char* call) {
  if (stream_) return *stream_;
  throw StateError(fmt::format("{} without an open step or graph; begin one first", call));
}

void PyCapturer::begin_step(const StepInfo& step, nb::handle given) {
  const auto use = this->use();
  auto stream = stream_for(given);
  {
    const auto queue = stream->use();
    const ReleasedGil release;  // may wait to tell the scheduler of the step before
    use->begin_step(step, *queue);
  }
  stream_ = std::move(stream);
  open_step_ = step.step;
  num_tokens_ = step.num_tokens;
  slots_ = nullptr;
  slot_mapping_.reset();
}

void PyCapturer::capture(int layer, nb::handle topk_ids, nb::handle weights) {
  const auto use = this->use();
  PyStream& stream = open_stream("capture()");
  const GivenArray ids = look_at(topk_ids, "topk_ids", device_, stream);
  std::optional<GivenArray> factors;
  if (!weights.is_none()) factors.emplace(look_at(weights, "weights", device_, stream));

  TopkIds picks = topk_ids_of(ids, *uploads_, stream, in_graph_);
  if (factors) picks.weights = weights_of(*factors, picks, *uploads_, stream, in_graph_);
  if (stream.recording()) stream.need(open_);
  const auto queue = stream.use();
  use->capture(layer, picks, *queue);
  uploads_->done(*queue);
}

const Slot* PyCapturer::slots_of(nb::handle given, PyStream& stream) {
  const bool is_sequence = PyList_Check(given.ptr()) != 0 || PyTuple_Check(given.ptr()) != 0 ||
                           PyRange_Check(given.ptr()) != 0;
  nb::object mapping = is_sequence ? int64_array(given, "slot_mapping") : nb::borrow(given);
  GivenArray slots = look_at(mapping, "slot_mapping", device_, stream);
  if (slots.type_name() != "int64" && slots.where == GivenArray::Where::host &&
      !slots.device_memory) {
    mapping = int64_array(given, "slot_mapping");
    slots = look_at(mapping, "slot_mapping", device_, stream);
  }
  if (slots.type_name() != "int64") {
    throw nb::type_error(
        fmt::format("slot_mapping is of {}; it must be int64 in device memory", slots.type_name())
            .c_str());
  }
  if (slots.shape.size() != 1 || (slots.shape[0] > 1 && slots.strides[0] != 8) ||
      reinterpret_cast<std::uintptr_t>(slots.data) % sizeof(Slot) != 0) {
    throw ArgumentError("slot_mapping must have one dimension, without gaps: [tokens]");
  }
  if (slots.shape[0] < num_tokens_) {
    throw ArgumentError(fmt::format("slot_mapping has {} slots for the step's {} tokens",
                                    slots.shape[0], num_tokens_));
  }
  slots_ = static_cast<const Slot*>(
      uploads_->place(slots, static_cast<std::size_t>(num_tokens_) * sizeof(Slot), stream, false));
  slot_mapping_ = nb::borrow(given);
  return slots_;
}

void PyCapturer::publish(nb::handle given) {
  const auto use = this->use();
  PyStream& stream = open_stream("publish()");
  if (in_graph_) throw StateError("publish() in a graph; end_graph() first");
  const Slot* const slots = given.is_none() ? nullptr : slots_of(given, stream);
  const auto queue = stream.use();
  {
    const ReleasedGil release;
    use->publish(slots, *queue);
  }
  uploads_->done(*queue);
  stream_.reset();
  slot_mapping_.reset();
  open_step_ = 0;
}

void PyCapturer::give_up() {
  const auto use = this->use();
  if (!stream_ || in_graph_) return;
  const auto queue = stream_->use();
  {
    const ReleasedGil release;
    use->give_up(slots_, *queue);
  }
  uploads_->done(*queue);
  stream_.reset();
  slot_mapping_.reset();
  open_step_ = 0;
}

void PyCapturer::begin_graph(std::int64_t padded_tokens, nb::handle given) {
  const auto use = this->use();
  auto stream = stream_for(given);
  use->begin_graph(padded_tokens);
  stream_ = std::move(stream);
  in_graph_ = true;
}

void PyCapturer::end_graph() {
  const auto use = this->use();
  use->end_graph();
  stream_.reset();
  in_graph_ = false;
}

namespace {

nb::list take_failures(PyCapturer& c) {
  const nb::object type = nb::module_::import_("moetap._errors").attr("StepFailed");
  nb::list failures;
  for (const StepFailed& failed : c.use()->take_failures()) {
    failures.append(type(number(failed.step()), failed.reason()));
  }
  return failures;
}

// Memory of a Capturer, which is not closed while this exists.
struct Lent {
  explicit Lent(std::shared_ptr<PyCapturer> of) : capturer(std::move(of)), loan(*capturer) {}
  std::shared_ptr<PyCapturer> capturer;
  PyCapturer::Loaned loan;
};

DeviceArray route_output(const std::shared_ptr<PyCapturer>& c, int layer) {
  const RouteOutput output = c->use()->route_output(layer);
  return {
      c->device(), std::make_shared<Lent>(c), output.data, {output.rows, output.columns}, "int16"};
}

void add_state(nb::class_<PyCapturer>& capturer) {
  capturer.def_prop_ro("shape", [](PyCapturer& c) { return ModelShape(c.use()->shape()); });
  capturer.def_prop_ro("device", [](const PyCapturer& c) { return c.device(); });
  capturer.def(
      "bind", [](PyCapturer& c, int layer) { c.use()->bind(layer); }, nb::arg("layer"),
      "Declares that a MoE layer of the target model will be captured. RangeError if the shape has "
      "no\n"
      "such layer, StateError if it is bound: a draft model's layers are not bound.");
  capturer.def(
      "bind_all",
      [](PyCapturer& c) {
        const auto use = c.use();
        for (const int layer : use->shape().moe_layers()) use->bind(layer);
      },
      "Binds every MoE layer of the shape.");
  capturer.def(
      "bound", [](PyCapturer& c, int layer) { return c.use()->bound(layer); }, nb::arg("layer"));
  capturer.def(
      "route_output", &route_output, nb::arg("layer"),
      "Where a fused kernel writes its picks for a bound layer, instead of capture(): int16\n"
      "[max_tokens][top_k] in device memory.");
  capturer.def(
      "take_failures", &take_failures,
      nb::sig("def take_failures(self) -> list[moetap._errors.StepFailed]"),
      "The steps that failed or were given up since the last call, as StepFailed exceptions.");
  capturer.def_prop_ro("num_failed", [](PyCapturer& c) { return c.use()->num_failed(); });
  capturer.def_prop_ro(
      "dropped", [](PyCapturer& c) { return c.use()->dropped(); },
      "The steps that were closed without their rows.");
  capturer.def(
      "finalize",
      [](PyCapturer& c, GivenStep step, const Timeout& timeout) {
        const auto use = c.use();
        const Milliseconds wait = c.timeout(timeout);
        const ReleasedGil release;
        use->finalize(step, wait);
      },
      nb::arg("step"), nb::arg("timeout") = nb::none(),
      "Returns when the reader can see every step up to this one. TimeoutError after `timeout` "
      "seconds.");
  capturer.def(
      "accept",
      [](PyCapturer& c, GivenStep step, GivenRequest request, std::int64_t num_tokens,
         Ints accepted) {
        const auto tokens = accepted.get("accepted");
        c.use()->accept(step, request, num_tokens, tokens);
      },
      nb::arg("step"), nb::arg("request"), nb::arg("num_tokens"), nb::arg("accepted"),
      "For rows kept per request: which of the step's drafts were accepted. See Ledger.accept().");
  capturer.def(
      "end_request",
      [](PyCapturer& c, GivenRequest request, const Choice<RequestEnd>& how) {
        c.use()->end_request(request, how);
      },
      nb::arg("request"), nb::arg("how") = "finished",
      "For rows kept per request: the engine no longer runs it.");
}

}  // namespace

void bind_capturer(nb::module_& m) {
  bind_guards(m);
  nb::class_<PyCapturer> capturer(m, "Capturer",
                                  "Records which experts the router picked. One per model and "
                                  "process; one thread at a time. Use\n"
                                  "it with `with`, or close() it.");
  add_constructor(capturer);
  add_state(capturer);
  add_steps(capturer);
  capturer.def("close", &PyCapturer::close, "Ends capturing. Later calls are a StateError.");
  capturer.def_prop_ro("closed", &PyCapturer::closed);
  capturer.def(
      "__enter__", [](nb::handle self) { return nb::borrow(self); },
      nb::sig("def __enter__(self) -> Capturer"));
  capturer.def(
      "__exit__", [](PyCapturer& c, nb::args) { c.close(); },
      nb::sig("def __exit__(self, *_: object) -> None"));
  capturer.def("__repr__", [](PyCapturer& c) {
    if (c.closed()) return fmt::format("<{}, closed>", c.what());
    return fmt::format("<{} on {}: {}>", c.what(), c.device()->name(),
                       c.use()->shape().to_string());
  });
}

}  // namespace moetap::python
