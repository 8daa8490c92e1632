#include <moetap/read_transport.h>
#include <moetap/routes_json.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/own_shared_memory.h"
#include "test/tool/tool_test.h"
#include "tool/slot_list.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::Result;
using test::run_tool;
using test::Signal;
using test::Slots;

class Dump : public test::ToolTest {
 protected:
  test::TemporaryDirectory output;
  std::filesystem::path output_directory = output.path();
  std::string file = output_directory / "rows.npy";
  std::string states_file = output_directory / "rows.states.npy";

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

  void expect_nothing_written() const { EXPECT_EQ(files(), std::set<std::string>{}); }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(output_directory)) {
      names.insert(entry.path().filename());
    }
    return names;
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

TEST_F(Dump, WritesWeightsToAFileOfTheirOwn) {
  const std::string weights_file = output_directory / "rows.weights.npy";
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
    endpoint.shape = endpoint.shape.with_weights(type);
    const Worker worker(endpoint, {{1, 2, 3}});
    const Result result = dump("1-3");
    ASSERT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.json()["weights"], weight_type_name(type));
    const Routes routes = from_npy(content(file), content(weights_file), endpoint.shape, 1);
    for (Slot slot = 1; slot <= 3; ++slot) {
      const auto row = routes.row(slot.value());
      EXPECT_EQ(std::vector<std::byte>(row.begin(), row.end()),
                test::row_of(endpoint.shape, 1, slot));
    }
  }
}

TEST_F(Dump, RefusesToWriteRowsWithoutWeightsBesideWeights) {
  const Worker worker(endpoint, {{1}});
  const std::string weights_file = output_directory / "rows.weights.npy";
  for (const std::string& old : {file, states_file, weights_file}) std::ofstream(old) << "old";
  const auto expect_refused = [&] {
    const Result result = dump("1");
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_TRUE(contains(result.output, weights_file)) << result.output;
    EXPECT_EQ(content(file), "old");
    EXPECT_EQ(content(states_file), "old");
    EXPECT_EQ(files(), (std::set<std::string>{"rows.npy", "rows.states.npy", "rows.weights.npy"}));
  };
  expect_refused();
  EXPECT_EQ(content(weights_file), "old");
  std::filesystem::remove(weights_file);
  std::filesystem::create_symlink("nothing", weights_file);
  expect_refused();
  EXPECT_TRUE(std::filesystem::is_symlink(weights_file));
  std::filesystem::remove(weights_file);
  std::filesystem::create_directory(weights_file);
  expect_refused();
}

TEST_F(Dump, WritesADeadWorkersRows) {
  const std::vector<Slots> steps{{1, 2, 3}, {3, 40}};
  EXPECT_EQ(run_on_dead(steps, command("40,3,2")).status, 0);
  expect_rows({{40, 2}, {3, 2}, {2, 1}});
  EXPECT_EQ(run_on_dead(steps, command("1-4", {"--missing"})).status, 0);
  expect_rows({{1, 1}, {2, 1}, {3, 2}, {4, 0}});
}

// Its schedulers may still be there, and put rows.
TEST_F(Dump, WaitsForTheLockOfADeadWorkersBuffer) {
  Result result{3, {}};
  for (int tries = 0; tries < 100 && result.status == 3; ++tries) {  // others may reclaim it
    Worker worker(endpoint, {{1}});
    test::BufferLock lock(endpoint);
    lock.lock();
    worker.kill();
    result = dump("1", {"--timeout", "20"});
  }
  EXPECT_EQ(result.status, 6) << result.output;
  EXPECT_TRUE(contains(result.output, std::to_string(getpid()))) << "the holder";
  expect_nothing_written();
}

class DumpOfPutRows : public Dump {
 protected:
  DumpOfPutRows() {
    // Rows that take long, each of one id only.
    endpoint.shape = ModelShape::uniform(256, 128, 256).with_repeated_experts();
    endpoint.num_slots = 32;
  }

  // Puts all rows again and again.
  class Scheduler {
   public:
    explicit Scheduler(const Endpoint& endpoint)
        : process_([&] {
            const auto reader = make_shm_reader(endpoint);
            Slots slots(static_cast<std::size_t>(endpoint.num_slots));
            std::iota(slots.begin(), slots.end(), Slot(0));
            std::vector<std::byte> rows(slots.size() * endpoint.shape.row_bytes());
            for (Step step = 2;; ++step) {
              std::ranges::fill(rows, static_cast<std::byte>(step.value()));
              reader->put(step, slots, rows, {});
              if (step == 2) put_.raise();
            }
          }) {
      put_.wait();
    }

   private:
    Signal put_;
    ChildProcess process_;
  };

  // Dumps while a scheduler puts rows, the worker being dead. Where the system lets it, in a
  // /dev/shm where no other process reclaims what a dead worker leaves.
  void dump_often() {
    test::mount_own_shared_memory("size=64m");
    constexpr int kDumps = 20;
    int dumps = 0;
    for (int tries = 0; tries < 100 && dumps < kDumps; ++tries) {  // others may reclaim it
      Worker worker(endpoint, {{0}});
      const Scheduler scheduler(endpoint);
      worker.kill();
      for (; dumps < kDumps; ++dumps) {
        const Result result = dump("all", {"--missing"});
        if (result.status == 3) break;
        ASSERT_EQ(result.status, 0) << result.output;
        EXPECT_EQ(result.json()["states"]["present"], endpoint.num_slots);
        expect_whole_rows();
        if (HasFailure()) return;
      }
    }
    EXPECT_EQ(dumps, kDumps);
  }

  void expect_whole_rows() const {
    const Routes routes = from_npy(content(file), endpoint.shape, 0);
    ASSERT_EQ(routes.states().size(), static_cast<std::size_t>(endpoint.num_slots));
    for (std::int64_t i = 0; i < endpoint.num_slots; ++i) {
      if (routes.states()[static_cast<std::size_t>(i)] != RowState::present) continue;
      const auto row = routes.row(i);
      ASSERT_TRUE(std::ranges::all_of(row, [&](std::byte id) { return id == row[0]; })) << i;
    }
  }
};

TEST_F(DumpOfPutRows, WritesAllOfThemUnderTheLock) {
  ChildProcess alone([&] { dump_often(); });
  EXPECT_EQ(alone.join(), 0);
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

TEST_F(Dump, WritesRowsOfAllHiddenLayersWhereAskedTo) {  // H31
  for (const WeightType weights : {WeightType::none, WeightType::float32}) {
    endpoint.instance += "x";
    endpoint.shape = ModelShape({1, 3}, 2, 16, 5).with_weights(weights);
    const Worker worker(endpoint, {{1, 2}});
    const Result result = dump("1-2", {"--hidden-layers"});
    ASSERT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.json()["shape"], (nlohmann::json{2, 5, 2}));
    EXPECT_EQ(result.json()["moe_layers"], (nlohmann::json{1, 3}));
    EXPECT_EQ(result.json()["dtype"], "int16");
    const Routes routes =
        weights == WeightType::none
            ? from_npy(content(file), endpoint.shape, 0)
            : from_npy(content(file), content(output_directory / "rows.weights.npy"),
                       endpoint.shape, 0);
    EXPECT_TRUE(routes.all_present());
    EXPECT_EQ(content(file), to_npy(routes, IdType::int16, hidden_layers()));
    EXPECT_EQ(dump("1-2", {"--hidden-layers", "--type", "uint8"}).status, 2);
  }
}

TEST_F(Dump, OfRowsThatSomebodyOverwroteIsStatus4) {  // H20, H32
  const Worker worker(endpoint, {{1, 2}});
  const std::vector<std::byte> zeros(endpoint.shape.row_bytes());
  const std::vector<std::byte> foreign(endpoint.shape.row_bytes(), std::byte{200});
  Step step = 2;
  for (const auto& row : {zeros, foreign}) {
    make_shm_reader(endpoint)->put(step++, Slots{2}, row, {});
    const Result result = dump("1-2");
    EXPECT_EQ(result.status, 4) << result.output;
    EXPECT_TRUE(contains(result.output, "slot 2")) << result.output;
    expect_nothing_written();
  }
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

TEST_F(Dump, NamesTheSlotsWhoseRowsAreNotPresent) {
  const Worker worker(endpoint, {{40, 41}, {1}});
  const Result missing = dump("40,9-11,63");
  EXPECT_EQ(missing.status, 5);
  EXPECT_TRUE(contains(missing.output, "4 missing (slots 9-11, 63)")) << missing.output;
  const Result mixed = dump("1,5,40,41", {"--first-step", "2"});
  EXPECT_TRUE(contains(mixed.output, "1 missing (slots 5)")) << mixed.output;
  EXPECT_TRUE(contains(mixed.output, "2 stale (slots 40-41)")) << mixed.output;
}

TEST_F(Dump, WritesFilesForItsUserOnly) {
  const Worker worker(endpoint, {{1}});
  std::ofstream(file) << "what another dump left";
  std::filesystem::permissions(file, std::filesystem::perms(0644));
  EXPECT_EQ(dump("1").status, 0);
  for (const std::string& made : {file, states_file}) {
    EXPECT_EQ(std::filesystem::status(made).permissions(), std::filesystem::perms(0600)) << made;
  }
  expect_rows({{1, 1}});
  EXPECT_EQ(files(), (std::set<std::string>{"rows.npy", "rows.states.npy"}));
}

TEST_F(Dump, WritesOverNothingButFiles) {
  const Worker worker(endpoint, {{1}});
  const std::string precious = output_directory / "precious";
  std::ofstream(precious) << "precious";
  for (const std::string& target : {file, states_file}) {
    const auto expect_refused = [&](const std::string& what) {
      const Result result = dump("1");
      EXPECT_EQ(result.status, 2) << result.output;
      EXPECT_TRUE(contains(result.output, target)) << result.output;
      EXPECT_TRUE(contains(result.output, what)) << result.output;
      EXPECT_EQ(content(precious), "precious");
      EXPECT_EQ(files().size(), 2u) << testing::PrintToString(files());
      std::filesystem::remove(target);
    };
    std::filesystem::create_symlink("precious", target);
    expect_refused("symbolic link");
    std::filesystem::create_symlink("nothing", target);
    expect_refused("symbolic link");
    std::filesystem::create_directory(target);
    expect_refused("no plain file");
    ASSERT_EQ(mkfifo(target.c_str(), 0600), 0);
    expect_refused("no plain file");
  }
}

// A file may not grow beyond 1 KiB here, as on a disk that is full.
TEST_F(Dump, LeavesWhatWasThereWhereItCannotWriteAll) {
  const Worker worker(endpoint, {{1}});
  const auto limited = [&] {
    test::ToolInto tool(STDOUT_FILENO,
                        {"/bin/sh", "-c", "ulimit -f 2; exec \"$0\" \"$@\"", MOETAP_TOOL},
                        command("all", {"--missing", "--type", "int64"}));
    return tool.join();
  };
  EXPECT_EQ(limited(), 1);
  expect_nothing_written();
  EXPECT_EQ(dump("1").status, 0);
  const auto rows = content(file);
  const auto states = content(states_file);
  EXPECT_EQ(limited(), 1);
  EXPECT_EQ(content(file), rows);
  EXPECT_EQ(content(states_file), states);
  EXPECT_EQ(files().size(), 2u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // take more than any limit
TEST_F(Dump, OfMoreThanFitsInMemorySaysHowMuchAndWhatTakesLess) {
  endpoint.num_slots = 1 << 21;
  const Worker worker(endpoint, {{1}});
  const auto limited = [&](const std::string& slots) {
    std::vector<std::string> arguments{"/bin/sh", "-c", "ulimit -v 130000; exec \"$0\" \"$@\"",
                                       MOETAP_TOOL};
    const auto rest = command(slots, {"--missing", "--type", "int64"});
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    demo::test::Program program(std::move(arguments));
    const int status = program.join();
    return Result{status, program.output()};
  };
  const Result all = limited("all");
  EXPECT_EQ(all.status, 1);
  const std::size_t row =
      sizeof(Slot) + endpoint.shape.row_bytes() + 1 + 8 * endpoint.shape.row_ids();
  EXPECT_TRUE(contains(all.output, std::to_string(row << 21) + " bytes")) << all.output;
  EXPECT_TRUE(contains(all.output, "--slots")) << all.output;
  expect_nothing_written();
  EXPECT_EQ(limited("1-3").status, 0);
}
#endif

TEST_F(Dump, LeavesNothingWhenItIsInterrupted) {
  endpoint.num_slots = 1 << 20;
  const Worker worker(endpoint, {{1}});
  const test::Descriptor null("/dev/null");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    int status = 0;
    for (int tries = 0; tries < 100 && status == 0; ++tries) {  // one may be too fast
      test::ToolInto tool(null.get(), command("all", {"--missing", "--type", "int64"}));
      for (int waited = 0; files().empty() && waited < test::kPatienceMs * 10; ++waited) {
        usleep(100);
      }
      ::kill(tool.pid(), signal);
      status = tool.join();
      if (status == 0) {
        EXPECT_EQ(files(), (std::set<std::string>{"rows.npy", "rows.states.npy"}));
        std::filesystem::remove(file);
        std::filesystem::remove(states_file);
      }
    }
    EXPECT_EQ(status, -signal);
    expect_nothing_written();
  }
}

// Killed in between, it leaves no rows with the states or weights of others.
TEST_F(Dump, RemovesEarlierRowsFirstAndMovesItsOwnThereLast) {
  endpoint.shape = endpoint.shape.with_weights(WeightType::float32);
  const Worker worker(endpoint, {{1}});
  ASSERT_EQ(dump("1").status, 0);
  const test::Descriptor events(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(inotify_add_watch(events.get(), output_directory.c_str(), IN_DELETE | IN_MOVED_TO), 0);
  ASSERT_EQ(dump("1").status, 0);
  alignas(inotify_event) char buffer[4096];
  const ssize_t bytes = ::read(events.get(), buffer, sizeof buffer);
  std::vector<std::string> seen;
  for (const char* at = buffer; at < buffer + bytes;) {
    const auto& event = *reinterpret_cast<const inotify_event*>(at);
    seen.push_back((event.mask == IN_DELETE ? "-" : "+") + std::string(event.name));
    at += sizeof event + event.len;
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"-rows.npy", "+rows.states.npy", "+rows.weights.npy",
                                            "+rows.npy"}));
}

TEST_F(Dump, OfABufferWithAnotherMagicIsStatus4) {
  ShmWriter writer(endpoint);
  const Segment segment = Segment::open(name());
  std::uint64_t magic = 0xBAD;
  std::memcpy(segment.bytes().data(), &magic, sizeof magic);
  for (const std::string& named : {name(), endpoint.instance}) {
    const Result result = run_tool({"dump", named, "--slots", "1", "-o", file});
    EXPECT_EQ(result.status, 4) << result.output;
    EXPECT_TRUE(contains(result.output, "0x0000000000000bad")) << result.output;
  }
  magic = kRingMagic;
  std::memcpy(segment.bytes().data(), &magic, sizeof magic);
  EXPECT_NE(dump("1").status, 0);
  expect_nothing_written();
}

TEST_F(Dump, SaysWhatElseWentWrongByItsStatus) {
  EXPECT_EQ(dump("1").status, 3) << "no such segment";
  const Worker worker(endpoint, {{1}});
  test::BufferLock lock(endpoint);
  lock.lock();
  const Result busy = dump("1", {"--timeout", "20"});
  EXPECT_EQ(busy.status, 6) << busy.output;
  EXPECT_TRUE(contains(busy.output, std::to_string(getpid()))) << "the holder";
  lock.unlock();
  file = output_directory / "no such directory" / "rows.npy";
  EXPECT_EQ(dump("1").status, 1) << "cannot be written";
}

}  // namespace
}  // namespace moetap
