// A scheduler: waits for a worker's steps and reads the routes of its request. Links neither CUDA
// nor the worker's library.
//
//   scheduler [shm|device] [instance]
#include <moetap/reader.h>
#include <moetap/readers.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "example.h"

namespace {

void print_row(const moetap::Routes& routes, std::int64_t position) {
  std::printf("  token %2d:", static_cast<int>(position));
  for (int layer = 0; layer < routes.shape().num_layers(); ++layer) {
    std::printf("  layer %d ->", layer);
    for (int k = 0; k < routes.shape().top_k(); ++k) {
      std::printf(" %2u", routes.id(position, layer, k));
    }
  }
  std::printf("\n");
}

void run(const std::string& transport, const std::string& instance) {
  // Waits until the worker is there.
  const moetap::Endpoint endpoint = example::endpoint(instance);
  moetap::Reader reader(transport == "shm" ? moetap::make_shm_reader(endpoint)
                                           : moetap::make_device_reader(endpoint));

  for (moetap::Step step = 1; step <= example::kSteps; ++step) {
    reader.wait_for(step, std::chrono::seconds(30));
  }

  // The request is finished: all its rows, by the blocks that it owns. Its blocks were allocated
  // for step 1, and the last step that ran it was kSteps: rows of other steps in these slots
  // belong to other requests, and would not be `present`.
  const std::vector<moetap::StepWindow> window = {{.first = 1, .last = example::kSteps}};
  const moetap::Routes routes =
      reader.read(example::kBlocks, example::kBlockSize, {0, example::kRows}, window);
  routes.require_present();  // throws if any row is not there, and says which

  // As an answer needs them: the prompt's routes and the output's, in NumPy's format.
  const auto [prompt, output] = routes.split(example::kPrompt);
  std::printf("scheduler: %d rows, all present: %d of the prompt, %d of the output\n",
              static_cast<int>(routes.range().size()), static_cast<int>(prompt.range().size()),
              static_cast<int>(output.range().size()));
  for (const std::int64_t position : {std::int64_t{0}, example::kPrompt, example::kRows - 1}) {
    print_row(routes, position);
  }
  const std::string npy = moetap::to_npy_base64(output, moetap::IdType::uint8);
  std::printf("scheduler: the output's routes as base64 of a .npy file: %.40s… (%zu characters)\n",
              npy.c_str(), npy.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "device", argc > 2 ? argv[2] : "example");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scheduler: %s\n", error.what());
    return 1;
  }
}
