// The cost of capturing on a device. gpu_check.py runs this program after the tests and prints the
// table.
#include <moetap/cuda_device.h>
#include <moetap/device.h>

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bench/gpu_check/busy.h"
#include "bench/gpu_check/checks.h"

MOETAP_DEFINE_KERNEL(moetap::bench::Busy);

namespace moetap::bench {
namespace {

constexpr const char* kUsage =
    "usage: moetap_gpu_check DEVICE FILE   measures on `cuda`, `cuda:N` or `host`, writes JSON\n"
    "       moetap_gpu_check --why-no-gpu  says why there is none (status 3), or nothing\n";
constexpr int kNoGpu = 3;

void measure(const std::string& name, const std::string& path) {
  Schedulers schedulers;  // processes of their own, before there are threads
  const auto device = open_device(name);
  Figures figures;
  std::fputs("capture …\n", stderr);
  check_capture(*device, figures);
  std::fputs("transfer …\n", stderr);
  check_transfer(*device, figures);
  std::fputs("steps …\n", stderr);
  check_steps(*device, schedulers, figures);
  std::ofstream file(path);
  file << to_json(device->name(), figures) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--why-no-gpu") {
    const auto why = why_no_cuda();
    if (why) fmt::print("{}\n", *why);
    return why ? kNoGpu : 0;
  }
  if (argc != 3) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  measure(argv[1], argv[2]);
  return 0;
}

}  // namespace
}  // namespace moetap::bench

int main(int argc, char** argv) {
  try {
    return moetap::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "moetap_gpu_check: {}\n", error.what());
    return 1;
  }
}
