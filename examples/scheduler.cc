// A scheduler: reports its decisions about a request to the ledger, and reads the request's routes
// when it ends. Links neither CUDA nor the worker's library.
//
//   scheduler [shm|device] [instance]
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>

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

// A step without rows is no reason to stop: its tokens are sampled all the same.
void wait_for_worker(moetap::Reader& reader, moetap::Step step) {
  try {
    reader.wait_for(step, std::chrono::seconds(30));
  } catch (const moetap::StepFailed& failed) {
    std::printf("scheduler: %s\n", failed.what());
  }
}

void run(const std::string& transport, const std::string& instance) {
  // Waits until the worker has started.
  const moetap::Endpoint endpoint = example::endpoint(instance);
  moetap::Reader reader(transport == "shm" ? moetap::make_shm_reader(endpoint)
                                           : moetap::make_device_reader(endpoint));

  // The ledger knows which step writes which row, whatever happens to requests and blocks.
  moetap::Ledger ledger(endpoint.num_slots / example::kBlockSize, example::kBlockSize);
  constexpr moetap::RequestId kRequest = 1;
  ledger.admit({.request = kRequest,
                .num_tokens = example::kPrompt,
                .placement = {.blocks = example::kBlocks, .cached = 0}});
  moetap::TokenRange positions{0, example::kPrompt};
  for (moetap::Step step = 1; step <= moetap::Step(example::kSteps); ++step) {
    ledger.schedule(step, kRequest, positions);
    // Here an engine sends the step to its worker, which returns the sampled token. In every
    // scheduling round it must take in the steps that have arrived. Otherwise the worker's ring
    // gets full, and its steps wait or are dropped.
    reader.poll();
    wait_for_worker(reader, step);
    ledger.accept(step, kRequest, positions.end + 1);
    positions = {positions.end, positions.end + 1};
  }

  // The request ends: the plan has the rows of all its tokens but the last one. They can be read
  // now or when the answer is sent. If a block got other tokens meanwhile, its rows' states say so.
  const moetap::RowPlan plan = ledger.finish(kRequest, example::kRows + 1);
  const moetap::Routes routes = moetap::read_rows(reader, plan, std::chrono::seconds(30));
  if (!routes.all_present()) {  // require_present() would throw, and name the rows
    std::printf("scheduler: %zu of %d rows are missing, so that the answer goes without routes\n",
                routes.count(moetap::RowState::missing), static_cast<int>(routes.range().size()));
    return;
  }

  // The parts of an answer: the prompt's routes and the output's, in NumPy's format.
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
