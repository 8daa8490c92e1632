// What the tests of the `moetap` program share: the program, and workers in other processes.
#pragma once

#include <moetap/channel.h>
#include <moetap/shm_writer.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

#include "message_of.h"
#include "names.h"
#include "program.h"
#include "shm_test.h"

namespace moetap::test {

using Slots = std::vector<Slot>;

struct Result {
  int status = -1;
  std::string output;

  // Of a command that was given --json. Fails the test if it is none.
  nlohmann::json json() const {
    auto parsed = nlohmann::json::parse(output, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << output;
    return parsed;
  }
};

inline Result run_tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), MOETAP_TOOL);
  demo::test::Program program(std::move(arguments));
  const int status = program.join();
  return {status, program.output()};
}

class ToolTest : public ShmTest {
 protected:
  // Publishes steps 1 … with these slots, then lives until it is killed.
  class Worker {
   public:
    Worker(const Endpoint& endpoint, const std::vector<Slots>& steps)
        : process_([&] {
            ShmWriter writer(endpoint);
            Step step = 0;
            for (const Slots& slots : steps) {
              ++step;
              writer.publish(step, slots, rows_of(endpoint.shape, step, slots));
            }
            published_.raise();
            pause();
          }) {
      published_.wait();
    }
    pid_t pid() const { return process_.pid(); }
    void kill() { process_.kill(); }

   private:
    Signal published_;
    ChildProcess process_;
  };

  std::string name() const { return buffer_name(endpoint); }

  // The same of a worker that was killed. Any worker that starts meanwhile, another test's too,
  // reclaims what this one left: then there is another.
  Result run_on_dead(const std::vector<Slots>& steps, const std::vector<std::string>& arguments) {
    for (int tries = 0; tries < 100; ++tries) {
      Worker(endpoint, steps).kill();
      const Result result = run_tool(arguments);
      if (result.status != 3) return result;
    }
    ADD_FAILURE() << "others reclaim each dead worker's segment at once";
    return {};
  }

  // What inspect says about the one segment of this name; checks the exit status.
  nlohmann::json inspected(const std::string& name, int status = 0) const {
    const Result result = run_tool({"inspect", name, "--json"});
    EXPECT_EQ(result.status, status) << result.output;
    const auto list = result.json()["segments"];
    EXPECT_EQ(list.size(), 1u) << result.output;
    return list.empty() ? nlohmann::json() : list[0];
  }
};

}  // namespace moetap::test
