// Endpoints that no two tests share, and nothing left in /dev/shm after them.
#pragma once

#include <moetap/endpoint.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "child_process.h"

namespace moetap::test {

inline Endpoint test_endpoint() {
  static std::atomic<int> counter{0};
  return {.instance = "test-" + std::to_string(getpid()) + "-" + std::to_string(++counter),
          .shape = ModelShape::uniform(3, 2, 16),
          .num_slots = 64,
          .max_tokens = 8,
          .ring_depth = 4};
}

// A fixture with an endpoint of its own. Removes what a killed process left, also when it failed.
class EndpointTest : public testing::Test {
 protected:
  ~EndpointTest() override {
    std::error_code ignored;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm", ignored)) {
      if (file.path().filename().string().find(endpoint.instance + "_") != std::string::npos) {
        std::filesystem::remove(file.path(), ignored);
      }
    }
  }

  // Whether leftover `name` has been removed. Another program on this machine may be about to do
  // it, and nobody else can meanwhile.
  static bool gone(const std::string& name) {
    for (int waited = 0; std::filesystem::exists("/dev/shm" + name); ++waited) {
      if (waited == kPatienceMs) return false;
      usleep(1000);
    }
    return true;
  }

  Endpoint endpoint = test_endpoint();
};

}  // namespace moetap::test
