// Reader and RequestReader.
#include "python/src/reader.h"

#include <moetap/error.h>
#include <moetap/poll_thread.h>
#include <moetap/read_transport.h>
#include <moetap/stages.h>

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/shared.h"
#include "python/src/words.h"

namespace moetap::python {
namespace {

enum class Source : std::uint8_t { device, shm };

}  // namespace
}  // namespace moetap::python

MOETAP_WORDS(moetap::python::Source, "transport", "'device', 'shm'",
             {{"device", moetap::python::Source::device}, {"shm", moetap::python::Source::shm}});

namespace moetap::python {

template <class T>
int PyReaderOf<T>::fileno() {
  const auto use = this->use();
  if (readable_) return *readable_;
  throw StateError(
      this->what() +
      " has no thread that polls, and so no descriptor; make it with poll_every=0.001");
}
template class PyReaderOf<Reader>;
template class PyReaderOf<RequestReader>;

namespace {

std::string name_of(const char* kind, const Endpoint& endpoint) {
  return fmt::format("the {} of {}/{}", kind, endpoint.instance, endpoint.dp_rank);
}

SlotReaderMaker maker_of(Source source) {
  return source == Source::shm ? &make_shm_reader : &make_device_reader;
}

template <class T, class Transport>
void construct(PyReaderOf<T>* self, const char* kind, const Endpoint& endpoint,
               const Timeout& every, std::unique_ptr<Transport> transport) {
  std::optional<int> readable;
  if (every) {
    int fd = -1;
    transport = poll_in_thread(std::move(transport), {.every = every->ms(), .readable = &fd});
    readable = fd;
  }
  new (self) PyReaderOf<T>(std::make_unique<T>(std::move(transport)), name_of(kind, endpoint),
                           endpoint.timeout, readable);
}

void open(PyReader* self, const Endpoint& endpoint, const Choice<Source>& given,
          const std::optional<Topology>& topology, const Timeout& every) {
  const SlotReaderMaker make = maker_of(given);
  std::unique_ptr<SlotReadTransport> transport;
  {
    const ReleasedGil release;
    transport = topology ? make_joined_reader(endpoint, *topology, make) : make(endpoint);
  }
  construct(self, "Reader", endpoint, every, std::move(transport));
}

void open_requests(PyRequestReader* self, const Endpoint& endpoint, const Timeout& every) {
  std::unique_ptr<RequestReadTransport> transport;
  {
    const ReleasedGil release;
    transport = make_request_reader(endpoint);
  }
  construct(self, "RequestReader", endpoint, every, std::move(transport));
}

// What both kinds of readers have. enter: the signature of __enter__().
template <class T>
void add_common(nb::class_<PyReaderOf<T>>& reader, const char* enter) {
  using R = PyReaderOf<T>;
  reader.def_prop_ro("shape", [](R& r) { return ModelShape(r.use()->shape()); });
  reader.def(
      "poll",
      [](R& r) {
        const auto use = r.use();
        const ReleasedGil release;
        return number(use->poll());
      },
      "Takes in the steps that have arrived, and returns the last one whose outcome is known. "
      "Never\n"
      "waits. Call it in every scheduling round: a worker whose ring is full waits for it.");
  reader.def(
      "wait_for",
      [](R& r, GivenStep step, const Timeout& timeout) {
        const auto use = r.use();
        wait_in_parts(r.timeout(timeout), [&](Milliseconds part) { use->wait_for(step, part); });
      },
      nb::arg("step"), nb::arg("timeout") = nb::none(),
      "Returns when the step's outcome is known. StepFailed if it failed. TimeoutError after "
      "`timeout`\n"
      "seconds (the endpoint's timeout by default), which says whether the worker lives.");
  reader.def_prop_ro(
      "worker_alive", [](R& r) { return r.use()->worker_alive(); },
      "False once the worker, or one of several, has died or ended.");
  reader.def_prop_ro(
      "dropped", [](R& r) { return r.use()->dropped(); },
      "The steps that the worker is known to have dropped.");
  reader.def("fileno", &R::fileno,
             "With poll_every: an eventfd that becomes readable when steps were taken in, when the "
             "worker\n"
             "died, or when a call would raise. Clear it with os.eventfd_read() before you use the "
             "reader.");
  reader.def("close", &R::close, "Ends reading. Later calls are a StateError.");
  reader.def_prop_ro("closed", &R::closed);
  reader.def(
      "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig(enter));
  reader.def(
      "__exit__", [](R& r, nb::args) { r.close(); },
      nb::sig("def __exit__(self, *_: object) -> None"));
  reader.def("__repr__", [](R& r) {
    if (r.closed()) return fmt::format("<{}, closed>", r.what());
    return fmt::format("<{}: {}>", r.what(), r.use()->shape().to_string());
  });
}

// Where a read puts its rows and states: new arrays, or those that the caller has.
class ReadInto {
 public:
  ReadInto(nb::handle out, std::int64_t rows, std::int64_t row_bytes) {
    if (out.is_none()) {
      const NewArray bytes = new_array("uint8", {rows, row_bytes});
      const NewArray states = new_array("uint8", {rows});
      arrays_ = nb::make_tuple(bytes.array, states.array);
      rows_ = {bytes.data, static_cast<std::size_t>(rows * row_bytes)};
      states_ = {states.data, static_cast<std::size_t>(rows)};
      return;
    }
    if (!PyTuple_CheckExact(out.ptr()) || PyTuple_GET_SIZE(out.ptr()) != 2) {
      throw nb::type_error("out is no tuple of two arrays; give (rows, states)");
    }
    arrays_ = nb::borrow<nb::tuple>(out);
    rows_ = bytes_of(held_rows_, out[0], "the rows of out", {rows, row_bytes}, true);
    states_ = bytes_of(held_states_, out[1], "the states of out", {rows}, true);
    if (rows_.data() < states_.data() + states_.size() &&
        states_.data() < rows_.data() + rows_.size()) {
      throw ArgumentError("the rows and the states of out overlap; give memory of its own to each");
    }
  }
  const nb::tuple& arrays() const { return arrays_; }
  std::span<std::byte> rows() const { return rows_; }
  std::span<RowState> states() const {
    return {reinterpret_cast<RowState*>(states_.data()), states_.size()};
  }

 private:
  nb::tuple arrays_;
  HeldBuffer held_rows_;
  HeldBuffer held_states_;
  std::span<std::byte> rows_;
  std::span<std::byte> states_;
};

nb::tuple read_slots(PyReader& r, Ints slots, nb::handle windows, nb::handle out) {
  const auto use = r.use();
  const auto where = slots.copy("slots");
  const auto when = windows_of(windows);
  const ReadInto into(out, static_cast<std::int64_t>(where.size()),
                      static_cast<std::int64_t>(use->shape().row_bytes()));
  {
    const MayRelease may(into.rows().size());
    use->read(as_span_of<const Slot>(std::span<const std::int64_t>(where)), when, into.rows(),
              into.states());
  }
  return into.arrays();
}

SharedRoutes read_blocks(PyReader& r, Ints blocks, int block_size, TokenRange positions,
                         nb::handle windows) {
  const auto use = r.use();
  const auto ids = blocks.copy("blocks");
  const auto when = windows_of(windows);
  const ReleasedGil release;
  return SharedRoutes(use->read(as_span_of<const BlockId>(std::span<const std::int64_t>(ids)),
                                block_size, positions, when));
}

void put(PyReader& r, GivenStep step, Ints slots, nb::handle rows, nb::handle states) {
  const auto use = r.use();
  const auto where = slots.copy("slots");
  HeldBuffer held;
  const auto bytes =
      bytes_of(held, rows, "rows",
               {std::ssize(where), static_cast<std::int64_t>(use->shape().row_bytes())}, false);
  const std::vector<std::byte> own(bytes.begin(), bytes.end());  // checked rows must not change
  const std::vector<RowState> of_rows = states_of(states, where.size());
  const MayRelease may(own.size());
  use->put(step, as_span_of<const Slot>(std::span<const std::int64_t>(where)), own, of_rows);
}

void add_reads(nb::class_<PyReader>& reader) {
  reader.def_prop_ro("num_slots", [](PyReader& r) { return r.use()->num_slots(); });
  reader.def("read", &read_slots, nb::arg("slots"), nb::arg("windows"), nb::kw_only(),
             nb::arg("out") = nb::none(),
             nb::sig("def read(self, slots: numpy.typing.NDArray[numpy.integer[typing.Any]] | "
                     "collections.abc.Sequence[int], "
                     "windows: tuple[int, int] | numpy.typing.NDArray[numpy.uint64], *, "
                     "out: tuple[numpy.typing.NDArray[numpy.uint8], "
                     "numpy.typing.NDArray[numpy.uint8]] | None = None) -> "
                     "tuple[numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]]"),
             "Rows uint8 [n][row_bytes] and states uint8 [n] of these slots. windows: the first "
             "and last step\n"
             "in which the owner can have written each, a pair for all slots or uint64 [n][2]. "
             "Rows that are\n"
             "not present are 0xFF throughout. out: arrays (rows, states) of these sizes without "
             "gaps, to be\n"
             "filled and returned; new ones would cost page faults. StateError for a window of "
             "several steps\n"
             "whose last has not arrived.");
  reader.def(
      "read_blocks", &read_blocks, nb::arg("blocks"), nb::arg("block_size"), nb::arg("positions"),
      nb::arg("windows"),
      nb::sig("def read_blocks(self, blocks: numpy.typing.NDArray[numpy.integer[typing.Any]] | "
              "collections.abc.Sequence[int], "
              "block_size: int, positions: range | tuple[int, int], "
              "windows: tuple[int, int] | numpy.typing.NDArray[numpy.uint64]) -> Routes"),
      "Rows of these positions of a sequence that owns `blocks`. windows: one for all blocks, or "
      "one\n"
      "for each.");
  reader.def(
      "put", &put, nb::arg("step"), nb::arg("slots"), nb::arg("rows"),
      nb::arg("states") = nb::none(),
      nb::sig("def put(self, step: int, slots: numpy.typing.NDArray[numpy.integer[typing.Any]] | "
              "collections.abc.Sequence[int], "
              "rows: numpy.typing.NDArray[numpy.uint8] | bytes, "
              "states: numpy.typing.NDArray[numpy.uint8] | bytes | None = None) -> None"),
      "Stores rows [n][row_bytes] with the stamp `step`, a step number of its own. states uint8 "
      "[n], as read:\n"
      "a row that is not present becomes missing. None: all are present. The rows are checked "
      "first.");
}

}  // namespace

void bind_reader(nb::module_& m) {
  nb::class_<DroppedSteps>(m, "DroppedSteps", "Steps that a worker closed without their rows.")
      .def_ro("count", &DroppedSteps::count)
      .def_prop_ro(
          "last", [](const DroppedSteps& d) { return number(d.last); },
          "The last such step; 0: none.")
      .def_ro("given_up", &DroppedSteps::given_up, "Those that the engine gave up.")
      .def("__repr__", [](const DroppedSteps& d) {
        return fmt::format("DroppedSteps(count={}, last={}, given_up={})", d.count, number(d.last),
                           d.given_up);
      });

  nb::class_<PyReader> reader(
      m, "Reader",
      "Reads rows that a worker published. One per worker (data-parallel rank). One thread at a "
      "time;\n"
      "with poll_every its calls may be made from any thread. Use it with `with`, or close() it.");
  reader.def(
      "__init__", &open, nb::arg("endpoint"), nb::arg("transport") = "device", nb::kw_only(),
      nb::arg("topology") = nb::none(), nb::arg("poll_every") = nb::none(),
      "Waits up to endpoint.timeout for the worker: TimeoutError. MismatchError if its shape "
      "or sizes\n"
      "differ. topology: joins all ranks that publish for topology.dp_rank, where "
      "`endpoint` describes\n"
      "the whole engine. poll_every: seconds after which a thread polls (0.001 to 1); see "
      "fileno().");
  add_common(reader, "def __enter__(self) -> Reader");
  add_reads(reader);

  nb::class_<PyRequestReader> requests(
      m, "RequestReader", "Reads whole requests from a worker that keeps rows per request.");
  requests.def("__init__", &open_requests, nb::arg("endpoint"), nb::kw_only(),
               nb::arg("poll_every") = nb::none(), "As Reader.");
  add_common(requests, "def __enter__(self) -> RequestReader");
  requests.def(
      "take",
      [](PyRequestReader& r, GivenRequest request, TokenRange positions, const Timeout& timeout) {
        const auto use = r.use();
        return SharedRoutes(wait_in_parts(r.timeout(timeout), [&](Milliseconds part) {
          return use->take(request, positions, part);
        }));
      },
      nb::arg("request"), nb::arg("positions"), nb::arg("timeout") = nb::none(),
      "Moves out the rows of a finished request. Waits for it to arrive: TimeoutError. StateError "
      "for\n"
      "a request that was already taken.");
}

}  // namespace moetap::python
