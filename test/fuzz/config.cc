// A model's config.json.
#include <moetap/error.h>
#include <moetap/shape.h>

#include "test/fuzz/target.h"

using namespace moetap;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::may_refuse([&] {
    const ModelShape shape = ModelShape::from_config(fuzz::text_of(data, size));
    fuzz::require(shape == ModelShape(shape.moe_layers(), shape.top_k(), shape.num_experts(),
                                      shape.num_hidden_layers()),
                  "a shape that its own numbers do not make");
  });
  return 0;
}
