// A kernel that simulates a layer's share of a forward pass.
#pragma once

#include <moetap/kernel.h>

#include <chrono>
#include <cstdint>

namespace moetap::bench {

// Keeps its stream busy for this long.
struct Busy {
  std::int64_t ns;

  MOETAP_DEVICE void operator()(Block block) const {
    if (block.lane != 0) return;
    const std::uint64_t until = now() + static_cast<std::uint64_t>(ns);
    while (now() < until) {
    }
  }

 private:
  MOETAP_DEVICE static std::uint64_t now() {
#if defined(__CUDA_ARCH__)
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
#else
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
#endif
  }
};

}  // namespace moetap::bench
