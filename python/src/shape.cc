// ModelShape.
#include <moetap/shape.h>

#include <fmt/format.h>

#include <optional>
#include <string>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/common.h"
#include "python/src/words.h"

namespace moetap::python {
namespace {

using Weights = std::optional<Choice<WeightType>>;

std::vector<int> layers_of(Ints& given) {
  const auto values = given.get("moe_layers");
  std::vector<int> layers;
  layers.reserve(values.size());
  for (const std::int64_t layer : values) {
    if (layer < 0 || layer >= ModelShape::kMaxLayers) {
      throw RangeError(
          fmt::format("MoE layer {}; layer ids are 0 to {}", layer, ModelShape::kMaxLayers - 1));
    }
    layers.push_back(static_cast<int>(layer));
  }
  return layers;
}

ModelShape from_config(nb::handle config) {
  nb::object text = nb::borrow(config);
  if (!PyUnicode_Check(config.ptr())) {
    text = nb::module_::import_("moetap._config").attr("text_of")(config);
  }
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 == nullptr) throw nb::python_error();  // a lone surrogate
  return ModelShape::from_config(std::string(utf8, static_cast<std::size_t>(size)));
}

std::optional<std::string> weights_word(const ModelShape& shape) {
  if (shape.weight_type() == WeightType::none) return std::nullopt;
  return std::string(weight_type_name(shape.weight_type()));
}

ModelShape with_weights(const ModelShape& shape, const Weights& type) {
  return shape.with_weights(type ? static_cast<WeightType>(*type) : WeightType::none);
}

using ShapeState = std::tuple<std::vector<int>, int, int, int, Weights, bool>;

void add_values(nb::class_<ModelShape>& shape) {
  shape
      .def_prop_ro(
          "moe_layers", [](const ModelShape& s) { return nb::tuple(nb::cast(s.moe_layers())); },
          nb::sig("def moe_layers(self) -> tuple[int, ...]"),
          "Ids of the layers that have a router, ascending. Rows have them in this order.")
      .def_prop_ro("num_layers", &ModelShape::num_layers, "Number of MoE layers.")
      .def_prop_ro("num_hidden_layers", &ModelShape::num_hidden_layers,
                   "Of the whole model, including dense layers.")
      .def_prop_ro("top_k", &ModelShape::top_k)
      .def_prop_ro("num_experts", &ModelShape::num_experts)
      .def_prop_ro(
          "id_type", [](const ModelShape& s) { return std::string(id_type_name(s.id_type())); },
          "Name of the NumPy type of the ids in a row: 'uint8' or 'uint16'.")
      .def_prop_ro("weight_type", &weights_word, "'float32', 'bfloat16', or None without weights.")
      .def_prop_ro("repeats_experts", &ModelShape::repeats_experts, "See with_repeated_experts().")
      .def_prop_ro("row_bytes", &ModelShape::row_bytes, "Bytes of a row: ids, then weights if any.")
      .def_prop_ro("ids_bytes", &ModelShape::ids_bytes, "Bytes of a row's ids.")
      .def_prop_ro("weights_offset", &ModelShape::weights_offset,
                   "Bytes from a row to its weights.");
}

}  // namespace

void bind_shape(nb::module_& m) {
  nb::class_<ModelShape> shape(
      m, "ModelShape",
      "The MoE layers of a model and what its router picks at each. Immutable.\n\n"
      "A shape that cannot be a MoE model's is an ArgumentError.");
  shape.def(
      "__init__",
      [](ModelShape* self, Ints moe_layers, int top_k, int num_experts, std::optional<int> hidden) {
        new (self) ModelShape(layers_of(moe_layers), top_k, num_experts, hidden);
      },
      nb::arg("moe_layers"), nb::arg("top_k"), nb::arg("num_experts"),
      nb::arg("num_hidden_layers") = nb::none(),
      "moe_layers: ids of the layers that have a router, ascending. num_hidden_layers: of the "
      "whole\n"
      "model; by default the last MoE layer is its last layer.");
  shape.def_static("uniform", &ModelShape::uniform, nb::arg("num_layers"), nb::arg("top_k"),
                   nb::arg("num_experts"), "MoE layers 0 to num_layers - 1, and no others.");
  shape.def_static(
      "from_config", &from_config, nb::arg("config"),
      nb::sig("def from_config(config: str | collections.abc.Mapping[str, typing.Any] | object) -> "
              "ModelShape"),
      "Reads a Hugging Face config.json or Mistral params.json: its text, a mapping, or an object\n"
      "with these attributes such as a transformers configuration. ArgumentError that names the "
      "key\n"
      "for anything that is not understood for certain.");
  shape.def_static(
      "from_config_file",
      [](nb::handle path) { return ModelShape::from_config_file(path_of(path)); }, nb::arg("path"),
      nb::sig("def from_config_file(path: str | os.PathLike[str]) -> ModelShape"),
      "As from_config(), from a file. SystemError if it cannot be read.");
  shape.def_static(
      "known", &ModelShape::known, nb::arg("name"),
      "A published model by name. ArgumentError that lists the names if it is not known.");
  shape.def_static("known_names", &ModelShape::known_names, "The names that known() takes.");
  shape.def("with_weights", &with_weights, nb::arg("type").none(),
            "The same model with the router's weights beside the ids, or without them (None).");
  shape.def("with_repeated_experts", &ModelShape::with_repeated_experts, nb::arg("repeats") = true,
            "The same model, declared to pick an expert twice for a token on purpose.");
  shape.def(
      "with_layers",
      [](const ModelShape& s, Ints layers) { return s.with_layers(layers_of(layers)); },
      nb::arg("moe_layers"), "The same model with only these MoE layers in a row.");
  shape.def("layer_index", &ModelShape::layer_index, nb::arg("model_layer"),
            "The index in a row of a model's layer id. RangeError if that layer has no router.");
  shape.def("difference", &ModelShape::difference, nb::arg("other"),
            "The differences, in words. Empty if the shapes are equal.");
  add_values(shape);
  shape.def(
      "__eq__",
      [](const ModelShape& a, nb::handle b) {
        ModelShape other = a;
        return nb::try_cast(b, other) && a == other;
      },
      nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"));
  shape.def("__hash__", [](const ModelShape& s) {
    return static_cast<Py_ssize_t>(std::hash<std::string>()(s.to_string()) >> 1);
  });
  shape.def("__str__", &ModelShape::to_string);
  shape.def("__repr__", [](const ModelShape& s) { return "ModelShape(" + s.to_string() + ")"; });
  shape.def(
      "__getstate__",
      [](const ModelShape& s) {
        Weights weights;
        if (const auto word = weights_word(s)) weights = Choice<WeightType>{*word};
        return ShapeState(s.moe_layers(), s.top_k(), s.num_experts(), s.num_hidden_layers(),
                          weights, s.repeats_experts());
      },
      nb::sig("def __getstate__(self) -> tuple[typing.Any, ...]"));
  shape.def(
      "__setstate__",
      [](ModelShape* self, const ShapeState& state) {
        const auto& [layers, top_k, experts, hidden, weights, repeats] = state;
        new (self) ModelShape(with_weights(
            ModelShape(layers, top_k, experts, hidden).with_repeated_experts(repeats), weights));
      },
      nb::sig("def __setstate__(self, state: tuple[typing.Any, ...], /) -> None"));
}

}  // namespace moetap::python
