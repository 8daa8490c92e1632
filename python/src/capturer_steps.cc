// A Capturer's steps and graphs: their descriptions, and guards for `with`.
#include <moetap/error.h>
#include <moetap/step.h>

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "python/src/arrays.h"
#include "python/src/capturer.h"

namespace moetap::python {
namespace {

// A tuple (request, position, count), or with the number of drafts as a fourth element.
RequestSpan span_of(nb::handle given) {
  std::uint64_t request = 0;
  std::int64_t parts[3] = {0, 0, 0};
  const std::size_t size = nb::isinstance<nb::sequence>(given) ? nb::len(given) : 0;
  bool read = (size == 3 || size == 4) && nb::try_cast(given[0], request);
  for (std::size_t i = 1; read && i < size; ++i) read = nb::try_cast(given[i], parts[i - 1]);
  if (!read) {
    throw nb::type_error(
        "an element of requests is no tuple (request, position, count) of ints, or "
        "(request, position, count, num_drafts)");
  }
  return {.request = RequestId(request),
          .position = parts[0],
          .count = parts[1],
          .num_drafts = parts[2]};
}

// A step's description, with the memory that StepInfo looks at.
struct Description {
  Step step{};
  std::int64_t num_tokens = 0;
  std::int64_t padded_tokens = 0;
  std::vector<std::int64_t> dp_tokens;
  std::vector<RequestSpan> requests;
  std::optional<std::vector<TokenRange>> wanted;

  StepInfo info() const {
    StepInfo info{.step = step,
                  .num_tokens = num_tokens,
                  .padded_tokens = padded_tokens,
                  .dp_tokens = dp_tokens,
                  .requests = requests};
    if (wanted) info.wanted = std::span<const TokenRange>(*wanted);
    return info;
  }
};

Description describe(GivenStep step, std::int64_t num_tokens, std::int64_t padded_tokens,
                     Ints& dp_tokens, nb::handle requests,
                     std::optional<std::vector<TokenRange>> wanted) {
  Description described{step, num_tokens,       padded_tokens, dp_tokens.copy("dp_tokens"),
                        {},   std::move(wanted)};
  for (const nb::handle span : nb::iter(requests)) described.requests.push_back(span_of(span));
  return described;
}

// An open step. It begins when it is entered.
class PyStepGuard {
 public:
  PyStepGuard(std::shared_ptr<PyCapturer> capturer, Description step, nb::object stream)
      : capturer_(std::move(capturer)), step_(std::move(step)), stream_(std::move(stream)) {}

  void enter() {
    if (entered_) throw StateError(fmt::format("step {} was entered already", number()));
    capturer_->begin_step(step_.info(), stream_);
    entered_ = true;
  }
  void publish(nb::handle slot_mapping) {
    if (!open()) {
      throw StateError(fmt::format("publish() of step {}, which {}", number(),
                                   entered_ ? "is closed" : "was not entered: use `with`"));
    }
    capturer_->publish(slot_mapping);
  }
  void exit() {
    if (open()) capturer_->give_up();
  }
  PyCapturer& capturer() { return *capturer_; }
  std::uint64_t number() const { return python::number(step_.step); }
  // The Capturer's own publish() and give_up() end it too.
  bool open() const { return entered_ && capturer_->open_step() == Step(step_.step); }

 private:
  std::shared_ptr<PyCapturer> capturer_;
  Description step_;
  nb::object stream_;
  bool entered_ = false;
};

class PyGraphGuard {
 public:
  PyGraphGuard(std::shared_ptr<PyCapturer> capturer, std::int64_t padded_tokens, nb::object stream)
      : capturer_(std::move(capturer)), padded_tokens_(padded_tokens), stream_(std::move(stream)) {}
  void enter() { capturer_->begin_graph(padded_tokens_, stream_); }
  void exit() { capturer_->end_graph(); }

 private:
  std::shared_ptr<PyCapturer> capturer_;
  std::int64_t padded_tokens_;
  nb::object stream_;
};

constexpr const char* kStepDoc =
    "One step of num_tokens real tokens of this rank. step: greater than every earlier one's.\n"
    "padded_tokens: rows including graph padding (0: num_tokens). dp_tokens: real tokens of each\n"
    "data-parallel rank, for the concatenated layout. requests: runs of the step's tokens as "
    "tuples\n"
    "(request, position, count[, num_drafts]), for rows that are kept per request. wanted: ranges "
    "of\n"
    "the tokens whose rows are wanted (None: all). stream: see Device.wrap_stream(); by default\n"
    "PyTorch's current one, or the Capturer's own on a host device.";

}  // namespace

void bind_guards(nb::module_& m) {
  nb::class_<PyStepGuard>(
      m, "StepGuard",
      "An open step, for `with`. One that was not published when it ends, e.g. because the forward "
      "pass\n"
      "raised, is given up: the reader is told that it failed, and the next step can begin.")
      .def(
          "__enter__",
          [](nb::handle self) {
            nb::cast<PyStepGuard&>(self).enter();
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> StepGuard"))
      .def(
          "__exit__", [](PyStepGuard& g, nb::args) { g.exit(); },
          nb::sig("def __exit__(self, *_: object) -> None"))
      .def("publish", &PyStepGuard::publish, nb::arg("slot_mapping").none(),
           nb::sig("def publish(self, slot_mapping: object) -> None"), "See Capturer.publish().")
      .def_prop_ro("step", &PyStepGuard::number)
      .def_prop_ro("open", &PyStepGuard::open)
      .def("__repr__", [](const PyStepGuard& g) {
        return fmt::format("<StepGuard of step {}, {}>", g.number(),
                           g.open() ? "open" : "not open");
      });
  nb::class_<PyGraphGuard>(m, "GraphGuard",
                           "capture() calls in it are recorded into a graph, for `with`.")
      .def(
          "__enter__",
          [](nb::handle self) {
            nb::cast<PyGraphGuard&>(self).enter();
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> GraphGuard"))
      .def(
          "__exit__", [](PyGraphGuard& g, nb::args) { g.exit(); },
          nb::sig("def __exit__(self, *_: object) -> None"));
}

void add_steps(nb::class_<PyCapturer>& capturer) {
  capturer.def(
      "step",
      [](std::shared_ptr<PyCapturer> c, GivenStep step, std::int64_t num_tokens,
         std::int64_t padded_tokens, Ints dp_tokens, nb::handle requests,
         std::optional<std::vector<TokenRange>> wanted, nb::object stream) {
        return PyStepGuard(
            std::move(c),
            describe(step, num_tokens, padded_tokens, dp_tokens, requests, std::move(wanted)),
            std::move(stream));
      },
      nb::arg("step"), nb::arg("num_tokens"), nb::kw_only(), nb::arg("padded_tokens") = 0,
      nb::arg("dp_tokens") = nb::tuple(), nb::arg("requests") = nb::tuple(),
      nb::arg("wanted") = nb::none(), nb::arg("stream") = nb::none(), kStepDoc);
  capturer.def(
      "begin_step",
      [](PyCapturer& c, GivenStep step, std::int64_t num_tokens, std::int64_t padded_tokens,
         Ints dp_tokens, nb::handle requests, std::optional<std::vector<TokenRange>> wanted,
         nb::handle stream) {
        const Description described =
            describe(step, num_tokens, padded_tokens, dp_tokens, requests, std::move(wanted));
        c.begin_step(described.info(), stream);
      },
      nb::arg("step"), nb::arg("num_tokens"), nb::kw_only(), nb::arg("padded_tokens") = 0,
      nb::arg("dp_tokens") = nb::tuple(), nb::arg("requests") = nb::tuple(),
      nb::arg("wanted") = nb::none(), nb::arg("stream") = nb::none(),
      "As step(), for engines whose steps have no scope. End it with publish() or give_up().");
  capturer.def(
      "capture", &PyCapturer::capture, nb::arg("layer"), nb::arg("topk_ids"),
      nb::arg("weights") = nb::none(),
      nb::sig(
          "def capture(self, layer: int, topk_ids: object, weights: object | None = None) -> None"),
      "Captures the picks of a layer of the open step or graph: [tokens][top_k] of int32, int64, "
      "int16,\n"
      "uint16 or uint8. Logical, global expert ids; -1 is a missing route. weights: float32 or "
      "bfloat16\n"
      "of the same shape, if the shape has weights. Arrays are NumPy's, or have DLPack or\n"
      "__cuda_array_interface__. Device memory is read in stream order; host memory is copied at "
      "once.");
  capturer.def("publish", &PyCapturer::publish, nb::arg("slot_mapping").none(),
               nb::sig("def publish(self, slot_mapping: object) -> None"),
               "Closes the step, and makes its rows visible at these slots: int64 [tokens], as an "
               "array or a\n"
               "sequence. Waits while the scheduler does not keep up: TimeoutError, which leaves "
               "the step open.\n"
               "A step of which no rows are wanted may be given None.");
  capturer.def("give_up", &PyCapturer::give_up,
               "Closes the step without its rows. Does nothing if no step is open.");
  capturer.def(
      "graph",
      [](std::shared_ptr<PyCapturer> c, std::int64_t padded_tokens, nb::object stream) {
        return PyGraphGuard(std::move(c), padded_tokens, std::move(stream));
      },
      nb::arg("padded_tokens"), nb::arg("stream") = nb::none(),
      "For `with`: capture() calls in it are recorded into a graph of so many (padded) tokens per "
      "rank.\n"
      "Only arrays in device memory can be recorded.");
}

}  // namespace moetap::python
