// A .npy file of routes. What is read comes out again as it was.
#include <moetap/error.h>
#include <moetap/routes_json.h>

#include "test/fuzz/target.h"

using namespace moetap;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const ModelShape& shape : {ModelShape::uniform(2, 2, 16), ModelShape::uniform(1, 3, 512)}) {
    fuzz::may_refuse([&] {
      const Routes routes = from_npy(fuzz::text_of(data, size), shape, 7);
      const Routes again = from_npy(to_npy(routes, IdType::int32), shape, 7);
      fuzz::require(std::ranges::equal(routes.states(), again.states()), "other states");
      fuzz::require(std::ranges::equal(routes.bytes(), again.bytes()), "other ids");
    });
  }
  return 0;
}
