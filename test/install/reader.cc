// A scheduler as a user would write it, on the installed headers: reads what the capturer
// published.
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/version.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "endpoint.h"

// An exception that the library throws is known here.
bool catches() {
  try {
    moetap::ModelShape::known("no such model");
  } catch (const moetap::Error&) {
    return true;
  }
  return false;
}

int main(int, char** argv) {
  if (std::strcmp(moetap::version(), MOETAP_VERSION) != 0 || !catches()) {
    std::fprintf(stderr, "the library is not the one of these headers\n");
    return 1;
  }
  moetap::Reader reader(moetap::make_shm_reader(endpoint(argv[1])));
  reader.wait_for(1, moetap::Milliseconds(10'000));
  // Positions 0 and 1 of a sequence whose blocks, of one token each, are 9 and 3.
  const std::vector<moetap::BlockId> blocks{9, 3};
  const std::vector<moetap::StepWindow> windows{{.first = 1, .last = 1}};
  const moetap::Routes routes = reader.read(blocks, 1, {0, 2}, windows);
  routes.require_present();
  for (int layer = 0; layer < 2; ++layer) {
    for (int token = 0; token < 2; ++token) {
      for (int k = 0; k < 2; ++k) {
        const auto id = routes.id(token, layer, k);
        const auto expected = static_cast<std::uint32_t>(4 * layer + 2 * token + k);
        if (id != expected) {
          std::fprintf(stderr, "token %d layer %d: %u, not %u\n", token, layer, id, expected);
          return 1;
        }
      }
    }
  }
}
