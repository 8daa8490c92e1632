// A scheduler for this example's worker, in a process of its own.
//
//   scheduler CONFIG.json shm|device INSTANCE REQUESTS VOCABULARY SEED ROWS COUNTS
//
// Writes orders to standard output, and reads the worker's answers from standard input. ROWS is as
// Scheduler says. COUNTS gets a line for each thing that is counted.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "example.h"
#include "scheduler.h"
#include "workload.h"

namespace {

std::unique_ptr<moetap::SlotReadTransport> make_reader(const std::string& transport,
                                                       const moetap::Endpoint& endpoint) {
  if (transport == "shm") return moetap::make_shm_reader(endpoint);
  if (transport == "device") return moetap::make_device_reader(endpoint);
  throw moetap::ArgumentError("transport '" + transport + "': choose shm or device");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::cerr << "usage: scheduler CONFIG.json shm|device INSTANCE REQUESTS VOCABULARY SEED ROWS "
                 "COUNTS\n";
    return 2;
  }
  try {
    const moetap::Endpoint endpoint = example::endpoint(argv[1], argv[3]);
    const auto seed = std::stoull(argv[6]);
    example::Scheduler scheduler(endpoint, make_reader(argv[2], endpoint), seed, argv[7]);
    scheduler.run(example::make_requests(std::stoi(argv[4]), std::stoi(argv[5]), seed), std::cout,
                  std::cin);
    std::ofstream counts(argv[8]);
    for (const auto& [what, count] : scheduler.counts()) counts << what << '\t' << count << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "scheduler: " << error.what() << '\n';
    return 1;
  }
}
