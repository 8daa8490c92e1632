// Segments in shared memory.
#include <moetap/segments.h>

#include <fmt/format.h>

#include <string>

#include "python/src/bindings.h"

namespace moetap::python {
namespace {

const char* word(SegmentInfo::Kind kind) {
  switch (kind) {
    case SegmentInfo::Kind::shm:
      return "shm";
    case SegmentInfo::Kind::ring:
      return "ring";
    case SegmentInfo::Kind::wire:
      return "wire";
    case SegmentInfo::Kind::other:
      return "other";
  }
  return "other";
}

const char* word(SegmentInfo::Owner owner) {
  switch (owner) {
    case SegmentInfo::Owner::alive:
      return "alive";
    case SegmentInfo::Owner::dead:
      return "dead";
    case SegmentInfo::Owner::unknown:
      return "unknown";
  }
  return "unknown";
}

}  // namespace

void bind_segments(nb::module_& m) {
  nb::class_<SegmentInfo>(m, "SegmentInfo", "A segment in this machine's shared memory.")
      .def_ro("name", &SegmentInfo::name, "With a leading '/'; the file is /dev/shm<name>.")
      .def_prop_ro(
          "kind", [](const SegmentInfo& s) { return word(s.kind); },
          nb::for_getter(
              nb::sig("def kind(self) -> typing.Literal['shm', 'ring', 'wire', 'other']")))
      .def_prop_ro(
          "owner", [](const SegmentInfo& s) { return word(s.owner); },
          nb::for_getter(nb::sig("def owner(self) -> typing.Literal['alive', 'dead', 'unknown']")),
          "'dead': reclaim() removes it. 'unknown': another user's, or vLLM's.")
      .def_ro("owner_pid", &SegmentInfo::owner_pid, "0 if there is no living owner.")
      .def_ro("reader_pid", &SegmentInfo::reader_pid, "Of a ring's living reader; else 0.")
      .def_ro("user", &SegmentInfo::user, "The numeric user id.")
      .def_ro("bytes", &SegmentInfo::bytes)
      .def("__repr__", [](const SegmentInfo& s) {
        return fmt::format("<SegmentInfo {}: {}, owner {} ({}), {} bytes>", s.name, word(s.kind),
                           word(s.owner), s.owner_pid, s.bytes);
      });
  m.def("find_segments", &find_segments, nb::call_guard<ReleasedGil>(),
        "Every segment of moetap's in /dev/shm, by name. Changes nothing.");
  m.def("reclaim", &reclaim, nb::arg("name"), nb::call_guard<ReleasedGil>(),
        "Removes the segment of this name if its owner is dead. False if it is in use, not ours, "
        "or gone.");
  m.def("why_no_huge_pages", &why_no_huge_pages,
        "Why this machine cannot have shared memory in huge pages; '' if it can.");
}

}  // namespace moetap::python
