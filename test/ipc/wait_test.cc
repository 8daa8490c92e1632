
#include "ipc/internal/wait.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <new>

#include "test/ipc/child_process.h"
#include "test/ipc/shared_object.h"

namespace moetap {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::ChildProcess;

constexpr std::chrono::milliseconds kPatience{test::kPatienceMs};

struct Board {
  WakeWord ping;
  WakeWord pong;
  std::atomic<int> pings{0};
  std::atomic<int> pongs{0};
};

class WaitTest : public testing::TestWithParam<std::chrono::microseconds> {
 protected:
  const test::SharedObject<Board> shared_board;
  Board& board = *shared_board;
};

// One lost wake-up and this hangs until the deadline.
TEST_P(WaitTest, NoWakeUpIsLostBetweenProcesses) {
  constexpr int kRounds = 3000;
  const auto spin = GetParam();
  ChildProcess other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      ASSERT_TRUE(wait_until(
          board.ping, Clock::now() + kPatience, [&] { return board.pings == i; }, spin));
      board.pongs = i;
      wake(board.pong);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    board.pings = i;
    wake(board.ping);
    ASSERT_TRUE(wait_until(
        board.pong, Clock::now() + kPatience, [&] { return board.pongs == i; }, spin));
  }
  EXPECT_EQ(other.join(), 0);
  EXPECT_EQ(board.ping.sleepers, 0u);
  EXPECT_EQ(board.pong.sleepers, 0u);
}

INSTANTIATE_TEST_SUITE_P(SleepAtOnceOrSpinFirst, WaitTest, testing::Values(0us, kSpin, 1000us));

TEST(Wait, EndsAtTheDeadline) {
  WakeWord word;
  const auto start = Clock::now();
  EXPECT_FALSE(wait_until(word, start + 20ms, [] { return false; }));
  EXPECT_GE(Clock::now() - start, 20ms);
  EXPECT_FALSE(wait_until(word, start, [] { return false; }));
}

TEST(Wait, LooksBeforeItWaitsEvenPastTheDeadline) {
  WakeWord word;
  EXPECT_TRUE(wait_until(
      word, Clock::now() - 1s, [] { return true; }, 0us));
}

TEST(Wait, AnyLimitHasADeadline) {
  const auto past = deadline_after(-5ms);
  EXPECT_LE(past, Clock::now());
  EXPECT_GT(deadline_after(std::chrono::milliseconds::max()), Clock::now() + 1h);
}

}  // namespace
}  // namespace moetap
