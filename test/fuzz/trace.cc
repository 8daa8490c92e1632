// A trace for the simulator, of either format.
#include "examples/simulator/trace.h"

#include "test/fuzz/target.h"

using namespace moetap;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::may_refuse([&] {
    const demo::Trace trace = demo::parse_trace(fuzz::text_of(data, size), "fuzzed", 0, 1);
    for (const demo::Request& request : trace.requests) {
      fuzz::require(request.prompt >= 1 && request.output >= 1, "a request without tokens");
      request.prompt_token(0);
      request.prompt_token(request.prompt - 1);
    }
  });
  return 0;
}
