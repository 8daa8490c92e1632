// The check for calls that cannot be part of a graph.
#pragma once

#include <moetap/collective.h>
#include <moetap/error.h>

#include <fmt/format.h>

namespace moetap {

// StateError that names the call if the stream records a graph, which stays unchanged. For calls
// that would queue work before they reach an operation that a graph cannot contain, or that a
// replay must not repeat.
inline void require_outside_graph(Stream& stream, const char* call) {
  if (!records_graph(stream)) return;
  throw StateError(
      fmt::format("{} on a stream that records a graph: end the recording first; of a step, only "
                  "what captures its layers may be part of a graph",
                  call));
}

}  // namespace moetap
