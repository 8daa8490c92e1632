#include <moetap/file_lock.h>
#include <moetap/routes_json.h>

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "slot_list.h"
#include "tool_test.h"

namespace moetap {
namespace {

using test::contains;
using test::Result;
using test::run_tool;
using test::Slots;

class Dump : public test::ToolTest {
 protected:
  std::string file = directory.path() / "rows.npy";
  std::string states_file = directory.path() / "rows.states.npy";

  std::vector<std::string> command(const std::string& slots,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"dump",     name(), "--slots", slots,
                                       "--output", file,   "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Result dump(const std::string& slots, const std::vector<std::string>& more = {}) const {
    return run_tool(command(slots, more));
  }

  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Each is the step that wrote the slot's row, or 0: the row must be missing.
  void expect_rows(const std::vector<std::pair<Slot, Step>>& rows) const {
    const Routes routes = from_npy(content(file), endpoint.shape, 0);
    ASSERT_EQ(routes.states().size(), rows.size());
    const std::string states = content(states_file);
    ASSERT_EQ(states.size(), 128 + rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto [slot, step] = rows[i];
      const auto state = static_cast<RowState>(states[128 + i]);
      EXPECT_EQ(state == RowState::present, step != 0) << "slot " << slot;
      EXPECT_EQ(routes.states()[i] == RowState::present, step != 0) << "slot " << slot;
      if (step == 0) continue;
      const auto row = routes.row(static_cast<std::int64_t>(i));
      EXPECT_EQ(std::vector<std::byte>(row.begin(), row.end()),
                test::row_of(endpoint.shape, step, slot))
          << "slot " << slot;
    }
  }

  void expect_nothing_written() const {
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_FALSE(std::filesystem::exists(states_file));
  }
};

TEST_F(Dump, WritesALivingWorkersRows) {
  const Worker worker(endpoint, {{1, 2, 3}, {3, 40}});
  const Result result = dump("1-3,40");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.json()["states"]["present"], 4);
  EXPECT_EQ(result.json()["dtype"], "uint8");
  EXPECT_EQ(result.json()["shape"], (std::vector<int>{4, 3, 2}));
  expect_rows({{1, 1}, {2, 1}, {3, 2}, {40, 2}});
}

TEST_F(Dump, WritesADeadWorkersRows) {
  const std::vector<Slots> steps{{1, 2, 3}, {3, 40}};
  EXPECT_EQ(run_on_dead(steps, command("40,3,2")).status, 0);
  expect_rows({{40, 2}, {3, 2}, {2, 1}});
  EXPECT_EQ(run_on_dead(steps, command("1-4", {"--missing"})).status, 0);
  expect_rows({{1, 1}, {2, 1}, {3, 2}, {4, 0}});
}

TEST_F(Dump, WritesNothingIfARowIsMissing) {
  Worker worker(endpoint, {{1, 2, 3}});
  const Result result = dump("1-4");
  EXPECT_EQ(result.status, 5) << result.output;
  EXPECT_TRUE(contains(result.output, "missing")) << result.output;
  EXPECT_EQ(dump("1-4", {"--type", "int16"}).status, 5) << "-1 was not asked for";
  expect_nothing_written();
  worker.kill();
  EXPECT_EQ(run_on_dead({{1, 2, 3}}, command("all")).status, 5);
  expect_nothing_written();
}

TEST_F(Dump, WritesMissingRowsAsMinusOneWhereAskedTo) {
  const Worker worker(endpoint, {{1, 2, 3}});
  const Result result = dump("1-4", {"--missing"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.json()["dtype"], "int16");
  EXPECT_EQ(result.json()["states"]["missing"], 1);
  expect_rows({{1, 1}, {2, 1}, {3, 1}, {4, 0}});
  const std::string npy = content(file);
  std::int16_t last = 0;
  std::memcpy(&last, npy.data() + npy.size() - sizeof last, sizeof last);
  EXPECT_EQ(last, -1);
}

TEST_F(Dump, KnowsStaleAndClobberedRows) {
  const Worker worker(endpoint, {{1}, {2}, {3}});
  const Result result = dump("1-3", {"--missing", "--first-step", "2", "--last-step", "2"});
  EXPECT_EQ(result.json()["states"]["stale"], 1);
  EXPECT_EQ(result.json()["states"]["clobbered"], 1);
  expect_rows({{1, 0}, {2, 2}, {3, 0}});
}

TEST_F(Dump, OfWhatCannotBeIsWrongUsage) {
  const Worker worker(endpoint, {{1}});
  for (const char* slots :
       {"", "x", "-1", "1-", "3-1", "64", "0-64", "1,,2", "99999999999999999999"}) {
    EXPECT_EQ(dump(slots).status, 2) << slots;
  }
  EXPECT_EQ(dump("1", {"--type", "float"}).status, 2);
  EXPECT_EQ(dump("1", {"--type", "uint16", "--missing"}).status, 2);
  EXPECT_EQ(run_tool({"dump", name()}).status, 2) << "no slots";
  const ChannelProducer producer(endpoint);
  EXPECT_EQ(run_tool({"dump", ring_name(endpoint), "--slots", "1", "-o", file}).status, 2);
  expect_nothing_written();
}

TEST_F(Dump, SaysWhatElseWentWrongByItsStatus) {
  EXPECT_EQ(dump("1").status, 3) << "no such segment";
  const Worker worker(endpoint, {{1}});
  FileLock lock(lock_path(endpoint));
  lock.lock();
  const Result busy = dump("1", {"--limit", "20"});
  EXPECT_EQ(busy.status, 6) << busy.output;
  EXPECT_TRUE(contains(busy.output, std::to_string(getpid()))) << "the holder";
  lock.unlock();
  file = directory.path() / "no such directory" / "rows.npy";
  EXPECT_EQ(dump("1").status, 1) << "cannot be written";
}

TEST(SlotList, HasSlotsAndRangesInTheirOrder) {
  EXPECT_EQ(tool::parse_slots("7", 8), (Slots{7}));
  EXPECT_EQ(tool::parse_slots("5-7,0,2-2", 8), (Slots{5, 6, 7, 0, 2}));
  EXPECT_EQ(tool::parse_slots("all", 3), (Slots{0, 1, 2}));
}

}  // namespace
}  // namespace moetap
