// Also the program's own options.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "ipc/internal/segment.h"
#include "test/ipc/own_shared_memory.h"
#include "test/tool/tool_test.h"

namespace moetap {
namespace {

using test::contains;
using test::Result;
using test::run_tool;

class Gc : public test::ToolTest {
 protected:
  static bool exists(const std::string& name) { return std::filesystem::exists("/dev/shm" + name); }
  static bool lists(const Result& result, const std::string& name) {
    EXPECT_EQ(result.status, 0) << result.output;
    const auto removed = result.json()["removed"];
    return std::any_of(removed.begin(), removed.end(),
                       [&](const auto& entry) { return entry["name"] == name; });
  }
};

TEST_F(Gc, RemovesWhatADeadWorkerLeft) {
  {
    const Worker worker(endpoint, {{1}});
    EXPECT_FALSE(lists(run_tool({"gc", "--dry-run", "--json"}), name())) << "it lives";
  }
  // Workers that other tests start meanwhile may be the ones who remove it: then once more.
  bool kept = false;
  for (int tries = 0; tries < 100 && !kept; ++tries) {
    Worker(endpoint, {{1}}).kill();
    const Result dry = run_tool({"gc", "--dry-run", "--json"});
    EXPECT_EQ(dry.json()["dry_run"], true);
    kept = lists(dry, name()) && exists(name());
  }
  EXPECT_TRUE(kept) << "nothing was removed";
  bool removed = false;
  for (int tries = 0; tries < 100 && !removed; ++tries) {
    Worker(endpoint, {{1}}).kill();
    removed = lists(run_tool({"gc", "--json"}), name());
    EXPECT_FALSE(exists(name()));
  }
  EXPECT_TRUE(removed);
}

TEST_F(Gc, SaysWhatItCannotRemoveAndRemovesTheRest) {
  if (!test::can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  const auto under = directory.path() / "mounted";
  test::ChildProcess child([&] {
    ASSERT_TRUE(test::mount_own_shared_memory("size=1m"));
    std::ofstream(under) << "left";
    ASSERT_EQ(chmod(under.c_str(), 0600), 0);
    for (const char* file : {"/dev/shm/moetap_a_0", "/dev/shm/moetap_b_0"}) {
      std::ofstream(file) << "left";
      ASSERT_EQ(chmod(file, 0600), 0);
    }
    ASSERT_EQ(mount(under.c_str(), "/dev/shm/moetap_a_0", nullptr, MS_BIND, nullptr), 0);
    const Result result = run_tool({"gc"});
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_TRUE(contains(result.output, "cannot remove /dev/shm/moetap_a_0")) << result.output;
    EXPECT_TRUE(contains(result.output, "removed /moetap_b_0")) << result.output;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(Gc, LeavesTheLivingAndWireBuffersInUseAlone) {
  Endpoint wire = endpoint;
  wire.layout = ShmLayout::wire;
  Worker vllm(wire, {{1}});
  const Segment used = Segment::open(buffer_name(wire));
  vllm.kill();
  const Worker worker(endpoint, {{1}});
  const ChannelProducer producer(endpoint);
  EXPECT_EQ(run_tool({"gc"}).status, 0);
  EXPECT_TRUE(exists(name()));
  EXPECT_TRUE(exists(ring_name(endpoint)));
  EXPECT_TRUE(exists(buffer_name(wire)));
}

TEST(Tool, ExplainsItselfAndItsExitStatuses) {
  const Result help = run_tool({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(contains(help.output, "EXIT STATUS")) << help.output;
  for (const char* command : {"inspect", "watch", "dump", "plan", "gc"}) {
    EXPECT_TRUE(contains(help.output, command)) << help.output;
    const Result own = run_tool({command, "--help"});
    EXPECT_EQ(own.status, 0) << command;
    EXPECT_TRUE(contains(own.output, "--json")) << own.output;
    EXPECT_TRUE(contains(own.output, "EXIT STATUS")) << own.output;
    EXPECT_LT(help.output.size(), own.output.size() + 1000) << command;
  }
  // One line a command, its details in its own help.
  const auto commands = help.output.substr(help.output.find("Subcommands:"));
  const auto list = commands.substr(0, commands.find("EXIT STATUS"));
  EXPECT_EQ(std::ranges::count(list, '\n'), 1 + 5 + 2) << list;
  EXPECT_FALSE(contains(help.output, "mode 0600")) << help.output;
  EXPECT_TRUE(contains(run_tool({"dump", "--help"}).output, "mode 0600"));
  EXPECT_EQ(run_tool({"--version"}).status, 0);
}

TEST(Tool, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run_tool({}).status, 2);
  EXPECT_EQ(run_tool({"fix"}).status, 2);
  EXPECT_EQ(run_tool({"inspect", "--fix"}).status, 2);
  EXPECT_EQ(run_tool({"watch", "--interval", "0"}).status, 2);
}

TEST(Tool, SaysWhatItWouldTakeInstead) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"frob"}, {"frob", "--json"}, {"--frob"}, {}}) {
    const Result result = run_tool(command);
    EXPECT_EQ(result.status, 2);
    EXPECT_TRUE(contains(result.output, "inspect, watch, dump, plan, gc")) << result.output;
  }
  EXPECT_TRUE(contains(run_tool({"frob"}).output, "'frob'"));
  EXPECT_TRUE(contains(run_tool({"fr\x1b[2Job"}).output, "'fr\\x1b[2Job'"));
  const Result own = run_tool({"inspect", "engine", "frob"});
  EXPECT_EQ(own.status, 2);
  EXPECT_FALSE(contains(own.output, "inspect, watch")) << own.output;
  for (const char* count : {"0", "-1", "x", "99999999999999999999"}) {
    const Result result = run_tool({"watch", "--count", count});
    EXPECT_EQ(result.status, 2) << count;
    EXPECT_TRUE(contains(result.output, "1 or more")) << result.output;
  }
}

}  // namespace
}  // namespace moetap
