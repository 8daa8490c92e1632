// Runs a kernel over plain memory: every block, its lanes backwards, since lanes have no order.
#pragma once

#include <moetap/kernel.h>

#include <cstdint>

namespace moetap::test {

inline constexpr int kLaneCounts[] = {1, 3, 32, 128};

template <class Kernel>
void run_kernel(const Kernel& kernel, std::int64_t blocks, int lanes) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (int lane = lanes - 1; lane >= 0; --lane) {
      run_on_host<Kernel>(&kernel, Block{block, lane, lanes});
    }
  }
}

}  // namespace moetap::test
