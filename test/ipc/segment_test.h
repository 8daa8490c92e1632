// What the tests of segments share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "ipc/internal/segment.h"
#include "test/ipc/child_process.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {

inline constexpr std::size_t kBytes = 3 * 4096 + 5;
inline constexpr std::size_t kFarTooMuch = std::size_t{1} << 45;

class SegmentTest : public EndpointTest {
 protected:
  // Not one of those that any process that creates a segment removes when its owner is dead.
  const std::string name = "/other_" + endpoint.instance + "_0";

  std::string file() const { return "/dev/shm" + name; }

  // As a crashed process leaves it, filled with ones.
  void leave_behind(std::size_t bytes) { leave_behind(name, bytes); }
  void leave_behind(const std::string& left, std::size_t bytes) {
    ChildProcess dead([&] {
      const Segment segment = Segment::create(left, bytes);
      std::ranges::fill(segment.bytes(), std::byte{1});
      _exit(0);
    });
    ASSERT_EQ(dead.join(), 0);
  }
};

}  // namespace moetap::test
