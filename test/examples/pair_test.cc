// The two small programs, run against each other as their README says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "test/examples/program.h"

namespace demo::test {
namespace {

class ExamplePair : public testing::TestWithParam<std::string> {
 protected:
  std::string instance_ = "example-test-" + GetParam() + "-" + std::to_string(::getpid());

  void expect_all_read(Program& worker, Program& scheduler) {
    EXPECT_EQ(scheduler.join(), 0) << scheduler.output();
    EXPECT_NE(scheduler.output().find("64 rows, all present: 40 of the prompt, 24 of the output"),
              std::string::npos)
        << scheduler.output();
    // Row 63: (63 * 7 + layer * 3 + k * 5) mod 16.
    EXPECT_NE(scheduler.output().find("token 63:  layer 0 ->  9 14  layer 1 -> 12  1  "
                                      "layer 2 -> 15  4  layer 3 ->  2  7"),
              std::string::npos)
        << scheduler.output();
    EXPECT_TRUE(worker.wait_for_output("Press Enter to end")) << worker.output();
    EXPECT_EQ(worker.join(), 0) << worker.output();
  }
};

TEST_P(ExamplePair, WorkerFirst) {
  Program worker({EXAMPLE_WORKER, GetParam(), instance_});
  ASSERT_TRUE(worker.wait_for_output("16 experts")) << worker.output();
  Program scheduler({EXAMPLE_SCHEDULER, GetParam(), instance_});
  expect_all_read(worker, scheduler);
}

TEST_P(ExamplePair, SchedulerFirst) {
  Program scheduler({EXAMPLE_SCHEDULER, GetParam(), instance_});
  Program worker({EXAMPLE_WORKER, GetParam(), instance_});
  expect_all_read(worker, scheduler);
}

INSTANTIATE_TEST_SUITE_P(Transports, ExamplePair, testing::Values("shm", "device"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace demo::test
