// Kernels of the device tests, for every device.
#pragma once

#include <moetap/kernel.h>

#include <chrono>
#include <cstdint>
#include <thread>

namespace moetap::test {

// Not commutative: the result tells the order.
struct Append {
  std::int64_t* value;
  std::int64_t digit;
  MOETAP_DEVICE void operator()(Block block) const {
    if (block.index == 0 && block.lane == 0) *value = *value * 31 + digit;
  }
};

struct Set {
  std::int64_t* value;
  std::int64_t to;
  MOETAP_DEVICE void operator()(Block block) const {
    if (block.index == 0 && block.lane == 0) *value = to;
  }
};

struct Assign {
  std::int64_t* to;
  const std::int64_t* from;
  MOETAP_DEVICE void operator()(Block block) const {
    if (block.index == 0 && block.lane == 0) *to = *from;
  }
};

struct CountVisits {
  std::int64_t* visits;
  std::int64_t per_block;
  MOETAP_DEVICE void operator()(Block block) const {
    for (std::int64_t i = block.lane; i < per_block; i += block.lanes) {
      ++visits[block.index * per_block + i];
    }
  }
};

// to[i] += from[i] * factor: the memory is read at each replay, the factor is frozen.
struct AddScaled {
  std::int64_t* to;
  const std::int64_t* from;
  std::int64_t factor;
  std::int64_t count;
  MOETAP_DEVICE void operator()(Block block) const {
    for (std::int64_t i = block.lane; i < count; i += block.lanes) to[i] += from[i] * factor;
  }
};

// Keeps its stream for so long.
struct SpinFor {
  std::int64_t ns;
  MOETAP_DEVICE void operator()(Block block) const {
    if (block.index != 0 || block.lane != 0) return;
#if defined(__CUDA_ARCH__)
    const std::int64_t start = device_ns();
    while (device_ns() - start < ns) __nanosleep(1000);
#else
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
#endif
  }

 private:
#if defined(__CUDACC__)
  __device__ static std::int64_t device_ns() {
    std::int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
#endif
};

// Keeps its stream until `*open` is not 0 (pinned memory, set by the host), for 20 s at most.
struct Spin {
  const std::uint32_t* open;
  MOETAP_DEVICE void operator()(Block block) const {
    if (block.index != 0 || block.lane != 0) return;
    for (int i = 0; i < 20'000'000 && !is_open(); ++i) pause();
  }

 private:
  MOETAP_DEVICE bool is_open() const {
#if defined(__CUDA_ARCH__)
    std::uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(open) : "memory");
    return value != 0;
#else
    return __atomic_load_n(open, __ATOMIC_ACQUIRE) != 0;
#endif
  }
  MOETAP_DEVICE static void pause() {
#if defined(__CUDA_ARCH__)
    __nanosleep(1000);
#else
    std::this_thread::sleep_for(std::chrono::microseconds(1));
#endif
  }
};

}  // namespace moetap::test
