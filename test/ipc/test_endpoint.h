// Endpoints that no two tests share, and nothing left in /dev/shm after them.
#pragma once

#include <moetap/endpoint.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "test/ipc/child_process.h"

namespace moetap::test {

inline Endpoint test_endpoint() {
  static std::atomic<int> counter{0};
  return {.instance = "test-" + std::to_string(getpid()) + "-" + std::to_string(++counter),
          .shape = ModelShape::uniform(3, 2, 16),
          .num_slots = 64,
          .max_tokens = 8,
          .ring_depth = 4};
}

// Shared memory of an instance that a killed process left, and the lock files of its wire layout,
// which the processes that use them leave for each other.
inline void remove_all_of(const std::string& instance) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const fs::path& directory : {fs::path("/dev/shm"), fs::temp_directory_path(ignored)}) {
    for (const auto& file : fs::directory_iterator(directory, ignored)) {
      const std::string name = file.path().filename();
      const bool ours = name.starts_with("moetap_") || name.starts_with("vllm_routed_experts_") ||
                        directory == "/dev/shm";
      if (ours && name.find(instance + "_") != std::string::npos) fs::remove(file.path(), ignored);
    }
  }
}

// A fixture with an endpoint of its own. Removes what is left, also when the test failed.
class EndpointTest : public testing::Test {
 protected:
  ~EndpointTest() override { remove_all_of(endpoint.instance); }

  // Whether leftover `name` has been removed. Another program on this machine may be about to do
  // it, and no other process can meanwhile.
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
