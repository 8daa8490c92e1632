#include <gtest/gtest.h>
#include <signal.h>

#include <numeric>
#include <string>
#include <vector>

#include "test/ipc/step_records.h"
#include "test/tool/tool_test.h"
#include "tool/heat_map.h"

namespace moetap {
namespace {

using demo::test::Program;
using test::ChildProcess;
using test::contains;
using test::Result;
using test::run_tool;
using test::Signal;
using test::Slots;

class Watch : public test::ToolTest {
 protected:
  // Publishes step after step until it is killed.
  class Busy {
   public:
    explicit Busy(const Endpoint& endpoint)
        : process_([&] {
            ShmWriter writer(endpoint);
            for (Step step = 1;; ++step) {
              const Slot slot(step.value() % 60);
              const Slots slots{slot, slot + 1};
              writer.publish(step, unmarked(slots), test::rows_of(endpoint.shape, step, slots));
              if (step == 1) started_.raise();
              usleep(500);
            }
          }) {
      started_.wait();
    }

   private:
    Signal started_;
    ChildProcess process_;
  };
};

TEST_F(Watch, CountsStepsAndRowsAndPicks) {
  const Busy worker(endpoint);
  const Result result = run_tool({"watch", name(), "--once", "--interval", "200", "--json"});
  ASSERT_EQ(result.status, 0) << result.output;
  const auto found = result.json()["segments"][0];
  EXPECT_EQ(found["name"], name());
  EXPECT_EQ(found["problem"], nullptr);
  EXPECT_GT(found["steps_per_s"], 0);
  EXPECT_GT(found["rows_per_s"], 0);
  EXPECT_GT(found["sampled"], 0);
  ASSERT_EQ(found["load"].size(), 3u);
  for (const auto& layer : found["load"]) {
    const auto picks = layer["picks"].get<std::vector<int>>();
    EXPECT_EQ(picks.size(), 16u);
    EXPECT_EQ(std::accumulate(picks.begin(), picks.end(), 0),
              found["sampled"].get<int>() * endpoint.shape.top_k());
  }
}

TEST_F(Watch, PrintsPlainTextWhereThereIsNoTerminal) {
  const Busy worker(endpoint);
  const Result result = run_tool({"watch", endpoint.instance, "--count", "2", "--interval", "50"});
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.output, "steps/s")) << result.output;
  EXPECT_TRUE(contains(result.output, "layer    2 |")) << result.output;
  EXPECT_FALSE(contains(result.output, "\x1b")) << result.output;
  const auto first = result.output.find(name());
  EXPECT_NE(result.output.find(name(), first + 1), std::string::npos) << "two reports";
}

TEST_F(Watch, SeesARingsCountersAndTakesNothingOutOfIt) {
  ChannelProducer producer(endpoint);
  test::send_step(producer, endpoint.shape, 1, Slots{1});
  const Result result =
      run_tool({"watch", ring_name(endpoint), "--once", "--interval", "10", "--json"});
  const auto found = result.json()["segments"][0];
  EXPECT_EQ(found["kind"], "ring");
  EXPECT_EQ(found["last_step"], 1);
  EXPECT_EQ(found["waiting"], 1);
  EXPECT_FALSE(found.contains("load"));
  const Result text = run_tool({"watch", ring_name(endpoint), "--once", "--interval", "10"});
  EXPECT_TRUE(contains(text.output, "rows are for its reader only")) << text.output;
}

TEST_F(Watch, EndsCleanlyWhenInterrupted) {
  const Busy worker(endpoint);
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program({MOETAP_TOOL, "watch", name(), "--interval", "20"});
    ASSERT_TRUE(program.wait_for_output("steps/s"));
    ::kill(program.pid(), signal);
    EXPECT_EQ(program.join(), 0);
  }
}

TEST_F(Watch, OfNobodyIsStatus3) {
  EXPECT_EQ(run_tool({"watch", endpoint.instance, "--once"}).status, 3);
  Worker worker(endpoint, {{1}});
  worker.kill();
  EXPECT_EQ(run_tool({"watch", name(), "--once"}).status, 3) << "a dead worker's";
}

TEST(HeatMap, ShowsPicksAgainstAnEvenLoad) {
  const std::vector<tool::LayerLoad> load = {{3, {0, 2, 4, 10}}, {70, {0, 0, 0, 0}}};
  EXPECT_EQ(tool::heat_map(load, {}),
            "  layer    3 | :+@| expert 3 2.50x\n"
            "  layer   70 |    | nothing\n");
}

TEST(HeatMap, LetsNeighboursShareACellAndLeavesLayersOut) {
  std::vector<tool::LayerLoad> load(10, {0, std::vector<std::uint64_t>(256, 3)});
  for (int i = 0; i < 10; ++i) load[static_cast<std::size_t>(i)].layer = i;
  EXPECT_EQ(tool::heat_map(load, {.columns = 8, .lines = 2}),
            "  layer    0 |++++++++| expert 0 1.00x\n"
            "  layer    5 |++++++++| expert 0 1.00x\n");
  EXPECT_TRUE(contains(tool::heat_map(load, {.colour = true}), "\x1b[48;5;64m"));
}

}  // namespace
}  // namespace moetap
