// Output that does not arrive is an error, whatever the command.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>

#include <array>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "test/tool/tool_test.h"

namespace moetap {
namespace {

using test::Descriptor;
using test::ToolInto;

class Output : public test::ToolTest {
 protected:
  std::string rows = directory.path() / "rows.npy";

  // One of each kind.
  std::vector<std::vector<std::string>> commands() const {
    std::vector<std::vector<std::string>> all = {
        {"inspect", name()},
        {"watch", name(), "--once", "--interval", "1"},
        {"dump", name(), "--slots", "1", "-o", rows},
        {"plan", "--model", "kimi-k2", "--blocks", "1"},
        {"gc", "--dry-run"},
    };
    for (std::size_t i = 0, n = all.size(); i < n; ++i) {
      auto command = all[i];
      command.emplace_back("--json");
      all.push_back(std::move(command));
      all.push_back({all[i][0], "--help"});
    }
    all.push_back({"--help"});
    all.push_back({"--version"});
    return all;
  }
};

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  return ends;
}

// Whether the program comes to wait in poll().
bool waits(pid_t pid) {
  for (int waited = 0; waited < test::kPatienceMs; ++waited) {
    long call = -1;
    std::ifstream(fmt::format("/proc/{}/syscall", pid)) >> call;
    if (call == SYS_ppoll) return true;
#ifdef SYS_poll  // not everywhere
    if (call == SYS_poll) return true;
#endif
    usleep(1000);
  }
  return false;
}

TEST_F(Output, ThatFindsNoRoomIsStatus1) {
  const Worker worker(endpoint, {{1}});
  const Descriptor full("/dev/full");
  for (const auto& command : commands()) {
    EXPECT_EQ(ToolInto(full.get(), command).join(), 1) << testing::PrintToString(command);
  }
}

TEST_F(Output, IntoAClosedDescriptorIsStatus1AndGoesNowhereElse) {
  const Worker worker(endpoint, {{1}});
  for (const auto& command : commands()) {
    EXPECT_EQ(ToolInto(-1, command).join(), 1) << testing::PrintToString(command);
  }
  // The file, which could have become the standard output, has the rows and nothing after them.
  EXPECT_EQ(std::filesystem::file_size(rows), 128 + endpoint.shape.row_bytes());
}

TEST_F(Output, IntoAPipeThatNobodyReadsEndsAsSigpipe) {
  const Worker worker(endpoint, {{1}});
  for (const auto& command : commands()) {
    const auto [read_end, write_end] = make_pipe();
    close(read_end);
    const Descriptor unread(write_end);
    EXPECT_EQ(ToolInto(unread.get(), command).join(), -SIGPIPE) << testing::PrintToString(command);
  }
}

// Its limit on descriptors is lower than how many it waits for.
TEST_F(Output, ThatCannotBeWaitedForIsStatus1) {
  const auto [read_end, write_end] = make_pipe();
  const Descriptor reader(read_end);
  const Descriptor writer(write_end);
  std::string page(static_cast<std::size_t>(fcntl(write_end, F_SETPIPE_SZ, 4096)), 'x');
  ASSERT_EQ(write(write_end, page.data(), page.size()), ssize_t(page.size()));
  ToolInto plan(write_end, {"plan", "--layers", "1024", "--top-k", "2", "--experts", "16",
                            "--blocks", "1", "--json"});  // more than a pipe takes at once
  ASSERT_TRUE(waits(plan.pid()));
  const rlimit one{1, 1};
  ASSERT_EQ(prlimit(plan.pid(), RLIMIT_NOFILE, &one, nullptr), 0);
  ASSERT_EQ(read(read_end, page.data(), page.size()), ssize_t(page.size()));
  EXPECT_EQ(plan.join(), 1);
}

TEST_F(Output, OfWatchThatNobodyTakesDoesNotKeepItFromEnding) {
  const Worker worker(endpoint, {{1}});
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto [read_end, write_end] = make_pipe();
    const Descriptor reader(read_end);
    const Descriptor writer(write_end);
    ASSERT_GT(fcntl(write_end, F_SETPIPE_SZ, 4096), 0);
    ToolInto watch(write_end, {"watch", name(), "--interval", "1", "--json"});
    // Until nothing more goes in.
    for (int before = 0, now = 0, same = 0; same < 50; same = now == before ? same + 1 : 0) {
      before = now;
      usleep(1000);
      ASSERT_EQ(ioctl(read_end, FIONREAD, &now), 0);
      if (now == 0) same = -1;
    }
    ::kill(watch.pid(), signal);
    EXPECT_EQ(watch.join(), 0);
  }
}

}  // namespace
}  // namespace moetap
