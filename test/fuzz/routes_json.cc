// Routes in JSON. What is read comes out again as it was.
#include <moetap/error.h>
#include <moetap/routes_json.h>

#include "test/fuzz/target.h"

using namespace moetap;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ModelShape shape = ModelShape::uniform(2, 2, 16);
  fuzz::may_refuse([&] {
    const Routes routes = from_json(fuzz::text_of(data, size), shape);
    const Routes again = from_json(to_json(routes, IdType::int16), shape);
    fuzz::require(routes.range() == again.range(), "another range");
    fuzz::require(std::ranges::equal(routes.states(), again.states()), "other states");
    fuzz::require(std::ranges::equal(routes.bytes(), again.bytes()), "other ids");
  });
  return 0;
}
