// The cases of the differential tests: how many, and which. MOETAP_DIFFERENTIAL_CASES makes it that
// many, MOETAP_DIFFERENTIAL_SEED begins with that one: with 1 case, it replays what failed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "test/gpu/devices.h"

namespace moetap::test {

inline std::uint64_t from_environment(const char* variable, std::uint64_t otherwise) {
  const char* set = std::getenv(variable);
  return set == nullptr ? otherwise : std::stoull(set);
}

// Devices that run the cases. The seeded one draws the order of blocks and lanes from the case.
inline std::vector<DeviceMaker> differential_devices() {
  std::vector<DeviceMaker> makers = every_device();
  std::erase_if(makers, [](const DeviceMaker& maker) {
    return maker.name.starts_with("seeded") && maker.name != "seeded1";
  });
  return makers;
}

// Calls check(seed, device) for each case, until one fails. `share`: of the cases, one in so many.
template <class Check>
void for_each_case(const DeviceMaker& maker, std::uint64_t share, Check&& check) {
  const bool seeded = maker.name.starts_with("seeded");
  const std::uint64_t wanted =
      from_environment("MOETAP_DIFFERENTIAL_CASES", seeded ? 200 : 2000) / share;
  const std::uint64_t first = from_environment("MOETAP_DIFFERENTIAL_SEED", 1);
  std::unique_ptr<Device> device;
  for (std::uint64_t seed = first; seed < first + std::max<std::uint64_t>(wanted, 1); ++seed) {
    if (seeded || device == nullptr) device = maker.make(seed);
    check(seed, *device);
    if (!testing::Test::HasFailure()) continue;
    ADD_FAILURE() << "again: MOETAP_DIFFERENTIAL_CASES=1 MOETAP_DIFFERENTIAL_SEED=" << seed;
    return;
  }
}

}  // namespace moetap::test
