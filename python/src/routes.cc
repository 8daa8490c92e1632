// Routes: rows with their states, as NumPy views, .npy and JSON.
#include <moetap/error.h>
#include <moetap/routes.h>
#include <moetap/routes_json.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/shared.h"
#include "python/src/words.h"

namespace moetap::python {
namespace {

std::int64_t signed_size(std::size_t size) { return static_cast<std::int64_t>(size); }

// The ids of rows from `first` on, [tokens][layers][top_k] in the narrow type.
nb::object ids_view(const SharedRoutes& routes) {
  const Routes& r = routes.get();
  const ModelShape& shape = r.shape();
  const auto tokens = r.states().size();
  const auto layers = static_cast<std::size_t>(shape.num_layers());
  const auto top_k = static_cast<std::size_t>(shape.top_k());
  const nb::object owner = keeper_of(routes.owner());
  if (shape.id_type() == IdType::uint8) {
    return view_of(reinterpret_cast<const std::uint8_t*>(r.bytes().data()), {tokens, layers, top_k},
                   {signed_size(shape.row_bytes()), signed_size(top_k), 1}, owner);
  }
  return view_of(reinterpret_cast<const std::uint16_t*>(r.bytes().data()), {tokens, layers, top_k},
                 {signed_size(shape.row_bytes() / 2), signed_size(top_k), 1}, owner);
}

nb::object present_ids(const SharedRoutes& routes) {
  routes.get().require_present();
  return ids_view(routes);
}

template <class T>
nb::object weights_as(const SharedRoutes& routes) {
  const Routes& r = routes.get();
  const ModelShape& shape = r.shape();
  const auto top_k = static_cast<std::size_t>(shape.top_k());
  return view_of(reinterpret_cast<const T*>(r.bytes().data() + shape.weights_offset()),
                 {r.states().size(), static_cast<std::size_t>(shape.num_layers()), top_k},
                 {signed_size(shape.row_bytes() / sizeof(T)), signed_size(top_k), 1},
                 keeper_of(routes.owner()));
}

nb::object weights_view(const SharedRoutes& routes) {
  switch (routes.get().shape().weight_type()) {
    case WeightType::float32:
      return weights_as<float>(routes);
    case WeightType::bfloat16:
      return weights_as<std::uint16_t>(routes);
    case WeightType::none:
      break;
  }
  throw ArgumentError(
      fmt::format("rows of {} have no weights; both ends turn them on: ModelShape.with_weights()",
                  routes.get().shape().to_string()));
}

nb::object states_view(const SharedRoutes& routes) {
  const auto states = routes.get().states();
  return view_of(reinterpret_cast<const std::uint8_t*>(states.data()), {states.size()}, {1},
                 keeper_of(routes.owner()));
}

nb::object rows_view(const SharedRoutes& routes) {
  const Routes& r = routes.get();
  const std::size_t row = r.shape().row_bytes();
  return view_of(reinterpret_cast<const std::uint8_t*>(r.bytes().data()), {r.states().size(), row},
                 {signed_size(row), 1}, keeper_of(routes.owner()));
}

// Converts without the GIL, and copies to an array of NumPy's.
nb::object array_of(const SharedRoutes& routes, const char* dtype, ArrayLayers layers,
                    std::vector<std::byte> (*convert)(const Routes&, IdType, ArrayLayers),
                    IdType type) {
  const auto held = routes.owner();
  const Routes& r = *held;
  std::vector<std::byte> bytes;
  {
    const MayRelease may(r.bytes().size());
    bytes = convert(r, type, layers);
  }
  const ModelShape& shape = r.shape();
  const NewArray made = new_array(
      dtype, {r.range().size(), layers.all_hidden ? shape.num_hidden_layers() : shape.num_layers(),
              shape.top_k()});
  {
    const MayRelease may(bytes.size());
    std::memcpy(made.data, bytes.data(), bytes.size());
  }
  return made.array;
}

ArrayLayers layers_of(bool all_hidden, std::int64_t dense_id) {
  return all_hidden ? hidden_layers(dense_id) : kMoeLayers;
}

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

template <class Convert>
auto convert(const SharedRoutes& routes, Convert&& with) {
  const auto held = routes.owner();  // another thread may append meanwhile
  const MayRelease may(held->bytes().size());
  return with(*held);
}

SharedRoutes from_file(const nb::bytes& ids, const ModelShape& shape, std::int64_t start,
                       const std::optional<nb::bytes>& weights, std::int64_t dense_id) {
  const std::string_view text(ids.c_str(), ids.size());
  const std::string_view factors =
      weights ? std::string_view(weights->c_str(), weights->size()) : std::string_view();
  const bool has_weights = weights.has_value();
  const MayRelease may(text.size());
  if (!has_weights) return SharedRoutes(from_npy(text, shape, start, dense_id));
  return SharedRoutes(from_npy(text, factors, shape, start, dense_id));
}

// Positions [tokens), and layers; each None for all.
SharedRoutes take(const SharedRoutes& routes, const std::optional<std::vector<int>>& layers,
                  std::optional<TokenRange> tokens) {
  const auto held = routes.owner();
  const Routes& all = *held;
  const TokenRange range = tokens.value_or(all.range());
  if (range.start < all.range().start || range.end > all.range().end || range.start > range.end) {
    throw RangeError(fmt::format("tokens [{}, {}) of rows [{}, {})", range.start, range.end,
                                 all.range().start, all.range().end));
  }
  const auto some = [&] { return all.split(range.start).second.split(range.end).first; };
  const MayRelease may(all.bytes().size());
  Routes taken = range == all.range() ? all : some();
  return SharedRoutes(layers ? taken.with_layers(*layers) : std::move(taken));
}

void trust(SharedRoutes& routes) {
  std::ranges::replace(routes.change().states(), RowState::unverified, RowState::present);
}

std::string summary(const Routes& routes) {
  std::string states;
  for (int i = 0; i < 5; ++i) {
    const auto state = static_cast<RowState>(i);
    if (const auto n = routes.count(state); n > 0)
      states += fmt::format(", {} {}", n, row_state_name(state));
  }
  return fmt::format("<Routes of tokens [{}, {}), {}{}>", routes.range().start, routes.range().end,
                     routes.shape().to_string(), states);
}

using RoutesState = std::tuple<ModelShape, std::int64_t, std::int64_t, nb::bytes, nb::bytes>;

RoutesState state_of(const SharedRoutes& routes) {
  const Routes& r = routes.get();
  return {r.shape(), r.range().start, r.range().end, nb::bytes(r.bytes().data(), r.bytes().size()),
          nb::bytes(r.states().data(), r.states().size())};
}

// A pickle is trusted, as all are, but for sizes that would be written out of bounds.
void set_state(SharedRoutes* self, const RoutesState& state) {
  const auto& [shape, start, end, bytes, states] = state;
  if (start < 0 || end < start || states.size() != static_cast<std::size_t>(end - start) ||
      bytes.size() != states.size() * shape.row_bytes()) {
    throw ArgumentError("a pickle of Routes whose sizes contradict each other");
  }
  Routes routes(shape, {start, end}, Routes::Unset{});
  std::memcpy(routes.bytes().data(), bytes.c_str(), bytes.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto s = static_cast<unsigned char>(states.c_str()[i]);
    if (s > static_cast<unsigned char>(RowState::unverified)) {
      throw ArgumentError(fmt::format("a pickle of Routes with the row state {}", s));
    }
    routes.states()[i] = static_cast<RowState>(s);
  }
  new (self) SharedRoutes(std::move(routes));
}

void add_arrays(nb::class_<SharedRoutes>& routes) {
  routes.def_prop_ro("ids", &present_ids,
                     nb::for_getter(nb::sig("def ids(self) -> numpy.typing.NDArray[typing.Any]")),
                     "Expert ids [tokens][layers][top_k] in shape.id_type: a read-only view. "
                     "RowsNotPresent unless\n"
                     "all rows are present; to_ids() shows the others as -1.");
  routes.def_prop_ro(
      "weights", &weights_view,
      nb::for_getter(nb::sig("def weights(self) -> numpy.typing.NDArray[typing.Any]")),
      "Weights [tokens][layers][top_k], a read-only view: float32, or the bits of bfloat16 as "
      "uint16.\n"
      "NaN in rows that are not present. ArgumentError if the shape has none.");
  routes.def_prop_ro(
      "states", &states_view,
      nb::for_getter(nb::sig("def states(self) -> numpy.typing.NDArray[numpy.uint8]")),
      "The RowState of each row: uint8 [tokens], a read-only view.");
  routes.def_prop_ro(
      "rows", &rows_view,
      nb::for_getter(nb::sig("def rows(self) -> numpy.typing.NDArray[numpy.uint8]")),
      "The rows' bytes [tokens][row_bytes], a read-only view. Rows that are not present are 0xFF\n"
      "throughout, which may look like ids: see states.");
  routes.def(
      "to_ids",
      [](const SharedRoutes& r, const Choice<IdType>& dtype, bool all_hidden,
         std::int64_t dense_id) {
        const IdType type = dtype;
        return array_of(r, dtype.given.c_str(), layers_of(all_hidden, dense_id), &to_ids, type);
      },
      nb::arg("dtype") = "int16", nb::kw_only(), nb::arg("all_hidden") = false,
      nb::arg("dense_id") = -1,
      nb::sig("def to_ids(self, dtype: typing.Literal['uint8', 'uint16', 'int16', 'int32', "
              "'int64'] = 'int16', *, "
              "all_hidden: bool = False, dense_id: int = -1) -> numpy.typing.NDArray[typing.Any]"),
      "A copy [tokens][layers][top_k] of another type. Rows that are not present are -1 in signed\n"
      "types, and a RowsNotPresent error in unsigned ones. all_hidden: all hidden layers, with\n"
      "dense_id in those that the shape does not name. RangeError if the type is too narrow.");
  routes.def(
      "to_weights",
      [](const SharedRoutes& r, bool all_hidden) {
        const bool wide = r.get().shape().weight_type() != WeightType::bfloat16;
        return array_of(
            r, wide ? "float32" : "uint16", layers_of(all_hidden, -1),
            [](const Routes& of, IdType, ArrayLayers layers) { return to_weights(of, layers); },
            IdType::int16);
      },
      nb::kw_only(), nb::arg("all_hidden") = false,
      nb::sig(
          "def to_weights(self, *, all_hidden: bool = False) -> numpy.typing.NDArray[typing.Any]"),
      "A copy of the weights [tokens][layers][top_k], NaN in rows that are not present.");
}

void add_files(nb::class_<SharedRoutes>& routes) {
  routes.def(
      "to_npy",
      [](const SharedRoutes& r, const Choice<IdType>& dtype, bool all_hidden,
         std::int64_t dense_id) {
        const IdType type = dtype;
        return bytes_of(convert(r, [&](const Routes& of) {
          return to_npy(of, type, layers_of(all_hidden, dense_id));
        }));
      },
      nb::arg("dtype") = "int16", nb::kw_only(), nb::arg("all_hidden") = false,
      nb::arg("dense_id") = -1, "The bytes of a .npy file, converted as by to_ids().");
  routes.def(
      "to_npy_base64",
      [](const SharedRoutes& r, const Choice<IdType>& dtype, bool all_hidden,
         std::int64_t dense_id) {
        const IdType type = dtype;
        return convert(r, [&](const Routes& of) {
          return to_npy_base64(of, type, layers_of(all_hidden, dense_id));
        });
      },
      nb::arg("dtype") = "int16", nb::kw_only(), nb::arg("all_hidden") = false,
      nb::arg("dense_id") = -1, "The same in base64, as vLLM's API has it.");
  routes.def(
      "weights_to_npy",
      [](const SharedRoutes& r, bool all_hidden) {
        return bytes_of(convert(
            r, [&](const Routes& of) { return weights_to_npy(of, layers_of(all_hidden, -1)); }));
      },
      nb::kw_only(), nb::arg("all_hidden") = false,
      "The bytes of a .npy file of the weights. bfloat16 is stored as uint16 bits.");
  routes.def(
      "to_json",
      [](const SharedRoutes& r, const Choice<IdType>& dtype) {
        const IdType type = dtype;
        return convert(r, [&](const Routes& of) { return to_json(of, type); });
      },
      nb::arg("dtype") = "int16",
      "The rows with their positions, layers and states as JSON. See from_json().");
  routes.def_static(
      "from_json",
      [](std::string_view text, const ModelShape& shape) {
        const MayRelease may(text.size());
        return SharedRoutes(from_json(text, shape));
      },
      nb::arg("text"), nb::arg("shape"),
      "Reads text of to_json(). ArgumentError or RangeError for anything that contradicts itself "
      "or\n"
      "the model.");
  routes.def_static(
      "from_npy", &from_file, nb::arg("ids"), nb::arg("shape"), nb::kw_only(), nb::arg("start"),
      nb::arg("weights") = nb::none(), nb::arg("dense_id") = -1,
      "Reads the bytes of .npy files as rows from position `start` on. A row with an id of -1 is\n"
      "missing. The file has the shape's MoE layers, or all hidden layers with dense_id "
      "elsewhere.");
}

}  // namespace

void bind_routes(nb::module_& m) {
  nb::enum_<RowState>(m, "RowState", nb::is_arithmetic(), "The state of a row.")
      .value("present", RowState::present, "captured in a known step within the requested window")
      .value("missing", RowState::missing, "never captured, or its step failed")
      .value("stale", RowState::stale, "captured for an earlier owner of the slot")
      .value("clobbered", RowState::clobbered, "overwritten by a later owner of the slot")
      .value("unverified", RowState::unverified,
             "the buffer has no stamps (wire-compatible layout)");

  nb::class_<SharedRoutes> routes(
      m, "Routes",
      "The routes of positions [start, end) of one sequence, with the state of each row. Views of\n"
      "its arrays stay as they are, also when it changes or is gone.");
  routes.def(
      "__init__",
      [](SharedRoutes* self, const ModelShape& shape, TokenRange range) {
        if (range.start < 0 || range.end < range.start) {
          throw RangeError(fmt::format("positions [{}, {})", range.start, range.end));
        }
        new (self) SharedRoutes(Routes(shape, range));
      },
      nb::arg("shape"), nb::arg("positions"), "All rows missing.");
  routes.def_prop_ro("shape", [](const SharedRoutes& r) { return r.get().shape(); });
  routes.def_prop_ro(
      "positions", [](const SharedRoutes& r) { return to_range(r.get().range()); },
      nb::for_getter(nb::sig("def positions(self) -> range")),
      "The positions that the rows are of.");
  routes.def_prop_ro("start", [](const SharedRoutes& r) { return r.get().range().start; });
  routes.def_prop_ro("end", [](const SharedRoutes& r) { return r.get().range().end; });
  routes.def("__len__", [](const SharedRoutes& r) { return r.get().states().size(); });
  routes.def_prop_ro("all_present", [](const SharedRoutes& r) { return r.get().all_present(); });
  routes.def(
      "count", [](const SharedRoutes& r, RowState state) { return r.get().count(state); },
      nb::arg("state"), "How many rows have this state.");
  routes.def(
      "state", [](const SharedRoutes& r, std::int64_t position) { return r.get().state(position); },
      nb::arg("position"), "The state of the row at a position of the sequence.");
  routes.def(
      "require_present",
      [](nb::handle self) {
        nb::cast<const SharedRoutes&>(self).get().require_present();
        return nb::borrow(self);
      },
      nb::sig("def require_present(self) -> Routes"),
      "Itself. RowsNotPresent, with the count and first positions of each state, unless all are.");
  routes.def("trust_unverified", &trust,
             "Makes unverified rows present: for a caller that knows them to be right.");
  routes.def(
      "split",
      [](const SharedRoutes& r, std::int64_t position) {
        auto [before, after] = r.get().split(position);
        return std::pair(SharedRoutes(std::move(before)), SharedRoutes(std::move(after)));
      },
      nb::arg("position"), "Splits into [start, position) and [position, end).");
  routes.def("take", &take, nb::arg("layers") = nb::none(), nb::arg("tokens") = nb::none(),
             "A copy with only these MoE layers, and only the rows of these positions.");
  routes.def(
      "append",
      [](SharedRoutes& r, const SharedRoutes& next) {
        const auto rows = next.owner();  // may be its own
        r.change().append(*rows);
      },
      nb::arg("next"),
      "Appends the rows that follow. ArgumentError for other layers, a gap, or rows that are "
      "here.");
  routes.def("__repr__", [](const SharedRoutes& r) { return summary(r.get()); });
  routes.def("__getstate__", &state_of,
             nb::sig("def __getstate__(self) -> tuple[typing.Any, ...]"));
  routes.def("__setstate__", &set_state,
             nb::sig("def __setstate__(self, state: tuple[typing.Any, ...], /) -> None"));
  add_arrays(routes);
  add_files(routes);
}

}  // namespace moetap::python
