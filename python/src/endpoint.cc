// Endpoint and Topology, the descriptions that worker and scheduler must agree on, and the choice
// of the anchor KV-cache group.
#include <moetap/endpoint.h>
#include <moetap/slots.h>
#include <moetap/topology.h>

#include <fmt/format.h>

#include <string>
#include <tuple>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/words.h"

namespace moetap::python {
namespace {

// Keyword arguments with which an object of its class can be made again: for replace(), pickle and
// repr().
nb::dict fields_of(const Endpoint& e) {
  nb::dict fields;
  fields["instance"] = e.instance;
  fields["shape"] = e.shape;
  fields["num_slots"] = e.num_slots;
  fields["max_tokens"] = e.max_tokens;
  fields["dp_rank"] = e.dp_rank;
  fields["stage"] = e.stage;
  fields["part"] = e.part;
  fields["ring_depth"] = e.ring_depth;
  fields["steps_in_flight"] = e.steps_in_flight;
  fields["shm_layout"] = word_of(e.layout);
  fields["timeout"] = in_seconds(e.timeout);
  fields["huge_pages"] = e.huge_pages;
  return fields;
}

nb::dict fields_of(const Topology& t) {
  nb::dict fields;
  fields["dp_size"] = t.dp_size;
  fields["dp_rank"] = t.dp_rank;
  fields["tp_size"] = t.tp_size;
  fields["tp_rank"] = t.tp_rank;
  fields["output_rank"] = t.output_rank;
  fields["pp_size"] = t.pp_size;
  fields["pp_rank"] = t.pp_rank;
  fields["sp_size"] = t.sp_size;
  fields["ep_size"] = t.ep_size;
  fields["cp_size"] = t.cp_size;
  fields["layout"] = word_of(t.layout);
  fields["parts"] = word_of(t.parts);
  fields["stage_layers"] = t.stage_layers;
  return fields;
}

std::string text_of(const char* name, const nb::dict& fields) {
  std::string text;
  for (const auto& [key, value] : fields) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", nb::str(key).c_str(),
                        nb::repr(value).c_str());
  }
  return fmt::format("{}({})", name, text);
}

// replace() with this signature, pickling, equality and repr() of a class that is made of its
// fields.
template <class T>
void add_fields(nb::class_<T>& described, const char* name, const char* sig) {
  described.def(
      "replace",
      [](nb::handle self, const nb::kwargs& changes) {
        nb::dict fields = fields_of(nb::cast<const T&>(self));
        fields.update(changes);
        return nb::borrow(self.type())(**fields);
      },
      nb::sig(sig), "The same with other values of these fields.");
  described.def(
      "__reduce__",
      [](nb::handle self) {
        const nb::object make = nb::module_::import_("moetap._config").attr("make");
        return nb::make_tuple(make,
                              nb::make_tuple(self.type(), fields_of(nb::cast<const T&>(self))));
      },
      nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
  described.def(
      "__eq__",
      [](const T& self, nb::handle other) {
        return nb::isinstance<T>(other) &&
               fields_of(self).equal(fields_of(nb::cast<const T&>(other)));
      },
      nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"));
  described.def("__hash__", [](const T& self) {
    return nb::hash(nb::str(text_of("", fields_of(self)).c_str()));
  });
  described.def("__repr__", [name](const T& self) { return text_of(name, fields_of(self)); });
}

void bind_topology(nb::module_& m) {
  nb::class_<Topology> topology(
      m, "Topology",
      "How an engine distributes a model and its tokens over ranks, and the position of one rank.\n"
      "Every rank and the scheduler describe the same engine; only the `..._rank` fields differ.");
  topology.def(
      "__init__",
      [](Topology* self, int dp_size, int dp_rank, int tp_size, int tp_rank, int output_rank,
         int pp_size, int pp_rank, int sp_size, int ep_size, int cp_size,
         const Choice<RankLayout>& layout, const Choice<SequenceParts>& parts,
         std::vector<std::vector<int>> stage_layers) {
        new (self) Topology{dp_size,
                            dp_rank,
                            tp_size,
                            tp_rank,
                            output_rank,
                            pp_size,
                            pp_rank,
                            sp_size,
                            ep_size,
                            cp_size,
                            layout,
                            parts,
                            std::move(stage_layers)};
      },
      nb::kw_only(), nb::arg("dp_size") = 1, nb::arg("dp_rank") = 0, nb::arg("tp_size") = 1,
      nb::arg("tp_rank") = 0, nb::arg("output_rank") = 0, nb::arg("pp_size") = 1,
      nb::arg("pp_rank") = 0, nb::arg("sp_size") = 1, nb::arg("ep_size") = 1,
      nb::arg("cp_size") = 1, nb::arg("layout") = "local", nb::arg("parts") = "none",
      nb::arg("stage_layers") = nb::list(),
      "stage_layers: the MoE layer ids of each pipeline stage, ascending.");
  topology.def("validate", &Topology::validate, nb::arg("model"),
               "ArgumentError that says what is not supported and what to change.");
  topology.def("moe_stages", &Topology::moe_stages, "The stages that have MoE layers.");
  topology.def_prop_ro("captures", &Topology::captures, "Whether this rank needs a Capturer.");
  topology.def_prop_ro("publishes", &Topology::publishes,
                       "Whether this rank's rows go to the scheduler.");
  topology.def("stage_shape", &Topology::stage_shape, nb::arg("model"), nb::arg("stage"),
               "The shape of one stage's rows.");
  topology.def_ro("dp_size", &Topology::dp_size)
      .def_ro("dp_rank", &Topology::dp_rank)
      .def_ro("tp_size", &Topology::tp_size)
      .def_ro("tp_rank", &Topology::tp_rank)
      .def_ro("output_rank", &Topology::output_rank)
      .def_ro("pp_size", &Topology::pp_size)
      .def_ro("pp_rank", &Topology::pp_rank)
      .def_ro("sp_size", &Topology::sp_size)
      .def_ro("ep_size", &Topology::ep_size)
      .def_ro("cp_size", &Topology::cp_size)
      .def_prop_ro("layout", [](const Topology& t) { return std::string(word_of(t.layout)); })
      .def_prop_ro("parts", [](const Topology& t) { return std::string(word_of(t.parts)); })
      .def_prop_ro("stage_layers", [](const Topology& t) { return t.stage_layers; });
  add_fields(topology, "Topology", "def replace(self, **changes: typing.Any) -> Topology");
}

void bind_groups(nb::module_& m) {
  nb::class_<KvCacheGroup>(
      m, "KvCacheGroup",
      "One KV-cache group of an engine. A 'uniform' group wraps groups that share a block table.")
      .def(
          "__init__",
          [](KvCacheGroup* self, const Choice<KvCacheGroup::Kind>& kind, int block_size,
             std::vector<KvCacheGroup> members) {
            new (self) KvCacheGroup{kind, block_size, std::move(members)};
          },
          nb::arg("kind") = "full_attention", nb::arg("block_size") = 16,
          nb::arg("members") = nb::list())
      .def_prop_ro("kind", [](const KvCacheGroup& g) { return std::string(word_of(g.kind)); })
      .def_ro("block_size", &KvCacheGroup::block_size)
      .def_ro("members", &KvCacheGroup::members)
      .def("__repr__", [](const KvCacheGroup& g) {
        return fmt::format("KvCacheGroup('{}', block_size={}, {} members)", word_of(g.kind),
                           g.block_size, g.members.size());
      });
  m.def(
      "anchor_group", [](const std::vector<KvCacheGroup>& groups) { return anchor_group(groups); },
      nb::arg("groups"),
      "The index of the group whose slots identify rows: the first full-attention group. Worker\n"
      "and scheduler both call this. ArgumentError with the given kinds if there is none.");
  m.def(
      "slots_of",
      [](Ints blocks, int block_size, TokenRange positions) {
        const auto ids = blocks.get("blocks");
        const auto slots = slots_of(as_span_of<const BlockId>(ids), block_size, positions);
        const NewArray made = new_array("int64", {static_cast<std::int64_t>(slots.size())});
        std::memcpy(made.data, slots.data(), slots.size() * sizeof(Slot));
        return made.array;
      },
      nb::arg("blocks"), nb::arg("block_size"), nb::arg("positions"),
      nb::sig("def slots_of(blocks: numpy.typing.NDArray[numpy.integer[typing.Any]] | "
              "collections.abc.Sequence[int], "
              "block_size: int, positions: range | tuple[int, int]) -> "
              "numpy.typing.NDArray[numpy.int64]"),
      "The slots of these positions of a sequence with these blocks, in order: int64 [n].");
}

}  // namespace

void bind_endpoint(nb::module_& m) {
  bind_topology(m);
  nb::class_<Endpoint> endpoint(
      m, "Endpoint", "One worker's channel to its scheduler. Both ends make an equal one.");
  endpoint.def(
      "__init__",
      [](Endpoint* self, std::string instance, const ModelShape& shape, std::int64_t num_slots,
         std::int64_t max_tokens, int dp_rank, int stage, int part, int ring_depth,
         int steps_in_flight, const Choice<ShmLayout>& shm_layout, Seconds timeout,
         bool huge_pages) {
        Endpoint made{.instance = std::move(instance),
                      .dp_rank = dp_rank,
                      .stage = stage,
                      .part = part,
                      .shape = shape,
                      .num_slots = num_slots,
                      .max_tokens = max_tokens,
                      .ring_depth = ring_depth,
                      .steps_in_flight = steps_in_flight,
                      .layout = shm_layout,
                      .timeout = timeout.ms(),
                      .huge_pages = huge_pages};
        made.validate();
        new (self) Endpoint(std::move(made));
      },
      nb::arg("instance"), nb::arg("shape"), nb::kw_only(), nb::arg("num_slots"),
      nb::arg("max_tokens"), nb::arg("dp_rank") = 0, nb::arg("stage") = 0, nb::arg("part") = 0,
      nb::arg("ring_depth") = 4, nb::arg("steps_in_flight") = 1, nb::arg("shm_layout") = "native",
      nb::arg("timeout") = 30.0, nb::arg("huge_pages") = false,
      "instance: the engine's name. num_slots: num_blocks * block_size of the anchor KV-cache "
      "group.\n"
      "max_tokens: of a step. timeout: seconds that a wait for the other end may take. "
      "ArgumentError\n"
      "that names the field, its value and what is allowed.");
  endpoint.def_ro("instance", &Endpoint::instance)
      .def_ro("shape", &Endpoint::shape)
      .def_ro("num_slots", &Endpoint::num_slots)
      .def_ro("max_tokens", &Endpoint::max_tokens)
      .def_ro("dp_rank", &Endpoint::dp_rank)
      .def_ro("stage", &Endpoint::stage)
      .def_ro("part", &Endpoint::part)
      .def_ro("ring_depth", &Endpoint::ring_depth)
      .def_ro("steps_in_flight", &Endpoint::steps_in_flight)
      .def_prop_ro("shm_layout", [](const Endpoint& e) { return std::string(word_of(e.layout)); })
      .def_prop_ro(
          "timeout", [](const Endpoint& e) { return in_seconds(e.timeout); }, "Seconds.")
      .def_ro("huge_pages", &Endpoint::huge_pages);
  add_fields(endpoint, "Endpoint", "def replace(self, **changes: typing.Any) -> Endpoint");
  m.def("endpoint_of", &endpoint_of, nb::arg("engine"), nb::arg("rank"),
        "The endpoint of one rank. `engine` describes the whole model.");
  m.def("endpoints_of", &endpoints_of, nb::arg("engine"), nb::arg("topology"),
        "The endpoints that the scheduler of topology.dp_rank reads: [stages with MoE "
        "layers][parts].");
  bind_groups(m);
}

}  // namespace moetap::python
