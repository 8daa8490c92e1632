// The simulator as a user runs it: real processes, both transports.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "test/examples/program.h"
#include "test/ipc/temporary_directory.h"

namespace demo::test {
namespace {

namespace fs = std::filesystem;

class Demo : public testing::Test {
 protected:
  Demo() { fs::create_directories(directory_); }
  ~Demo() override { fs::remove_all(directory_); }

  static std::vector<std::string> command(std::vector<std::string> options,
                                          const std::string& device = "host") {
    options.insert(options.begin(), {MOETAP_DEMO, "--device", device});
    return options;
  }

  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
    return (directory_ / name).string();
  }

  // Runs to the end, which must be good, and returns the figures.
  nlohmann::json run(std::vector<std::string> options, const std::string& device = "host") {
    const std::string json = (directory_ / "out.json").string();
    options.insert(options.end(), {"--json", json});
    Program demo(command(std::move(options), device));
    EXPECT_EQ(demo.join(), 0) << demo.output();
    std::ifstream in(json);
    return nlohmann::json::parse(in).at("runs");
  }

  // Runs to the end, which must be exit status 1 with this text.
  void expect_error(std::vector<std::string> options, const std::string& text) {
    Program demo(command(std::move(options)));
    EXPECT_EQ(demo.join(), 1);
    EXPECT_NE(demo.output().find(text), std::string::npos) << demo.output();
  }

  fs::path directory_ = fs::temp_directory_path() / fmt::format("moetap-demo-test-{}", ::getpid());
  // Where the wire layout leaves its lock files.
  moetap::test::ScopedVariable tmpdir_{"TMPDIR", directory_};
};

// What the demo's processes leave in shared memory.
std::vector<std::string> shared_memory_of(pid_t pid) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find(fmt::format("demo-{}_", pid)) != name.npos) names.push_back(name);
  }
  return names;
}

// The processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream in(fmt::format("/proc/{0}/task/{0}/children", parent));
  std::vector<pid_t> children;
  for (pid_t pid; in >> pid;) children.push_back(pid);
  return children;
}

TEST_F(Demo, VerifiesEveryRowOverBothTransports) {
  const auto runs = run({"--requests", "20", "--kv-blocks", "160", "--step-ms", "0"});
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0]["transport"], "shm");
  EXPECT_EQ(runs[1]["transport"], "device");
  for (const auto& run : runs) {
    EXPECT_EQ(run["requests"], 20);
    EXPECT_EQ(run["requests_rejected"], 0);
    EXPECT_GT(run["rows_expected"], 1000);
    EXPECT_EQ(run["rows_verified"], run["rows_expected"]);
    EXPECT_EQ(run["rows_wrong"], 0);
    EXPECT_EQ(run["rows_missing"], 0);
    EXPECT_GT(run["prefix_hit_tokens"], 0);
    EXPECT_GT(run["preemptions"], 0);
    EXPECT_EQ(run["bytes_per_row"], 384);
    EXPECT_EQ(run["device"], "host");
    EXPECT_GT(run["worker_overhead_us"]["p50"], 0);
  }
  // The schedule does not depend on the transport.
  EXPECT_EQ(runs[0]["steps"], runs[1]["steps"]);
  EXPECT_EQ(runs[0]["tokens"], runs[1]["tokens"]);
}

TEST_F(Demo, VerifiesEveryRowOfAnEngineThatComputesOnTheCpu) {
  const auto runs = run({"--requests", "20", "--kv-blocks", "160", "--step-ms", "0"}, "inline");
  ASSERT_EQ(runs.size(), 2U);
  for (const auto& run : runs) {
    EXPECT_GT(run["rows_expected"], 1000);
    EXPECT_EQ(run["rows_verified"], run["rows_expected"]);
    EXPECT_EQ(run["rows_wrong"], 0);
    EXPECT_EQ(run["device"], "inline");
  }
}

// Everything at once: H9-H11, H16-H19.
TEST_F(Demo, VerifiesEveryRowWhateverHappensToItsRequest) {
  for (const bool hold : {false, true}) {
    std::vector<std::string> options{
        "--requests",    "40",  "--kv-blocks",  "200", "--step-ms",        "0",
        "--async-depth", "3",   "--speculate",  "3",   "--opt-in",         "0.8",
        "--stream",      "0.5", "--follow-up",  "1",   "--reject-rate",    "0.4",
        "--seed",        "3",   "--abort-rate", "0.3", "--offload-blocks", "300"};
    if (hold) options.emplace_back("--hold");
    const auto runs = run(options);
    ASSERT_EQ(runs.size(), 2U);
    for (const auto& run : runs) {
      EXPECT_GT(run["rows_expected"], 1000);
      EXPECT_EQ(run["rows_verified"], run["rows_expected"]);
      EXPECT_EQ(run["async_depth"], 3);
      EXPECT_GT(run["drafts_rejected"], 0);
      EXPECT_GT(run["drafts"], run["drafts_rejected"]);
      EXPECT_GT(run["preemptions"], 0);
      EXPECT_GT(run["requests_aborted"], 0);
      EXPECT_LT(run["requests_wanting"], 40);
      EXPECT_LT(run["rows_published"], run["tokens"]);
      EXPECT_EQ(run["bytes_published"], 384 * run["rows_published"].get<std::int64_t>());
      EXPECT_GT(run["rows_streamed"], 0);
      EXPECT_GT(run["rows_of_earlier_turns"], 0);
      EXPECT_EQ(run["requests_taken_early"] > 0, !hold);
      EXPECT_GT(run["offload_hit_tokens"], 0);
    }
    EXPECT_EQ(runs[0]["steps"], runs[1]["steps"]);
    EXPECT_EQ(runs[0]["rows_published"], runs[1]["rows_published"]);
  }
}

// Its rows cannot say what they are, so all of them are compared.
TEST_F(Demo, VerifiesTheWireLayoutWithoutItsHelp) {
  const auto runs =
      run({"--requests", "40",   "--kv-blocks",   "200", "--step-ms",   "0", "--transport", "shm",
           "--layout",   "wire", "--async-depth", "4",   "--speculate", "2", "--opt-in",    "0.8",
           "--stream",   "0.5",  "--abort-rate",  "0.3"});
  EXPECT_GT(runs[0]["rows_expected"], 1000);
  EXPECT_EQ(runs[0]["rows_verified"], runs[0]["rows_expected"]);
  EXPECT_GT(runs[0]["requests_aborted"], 0);
  EXPECT_GT(runs[0]["rows_streamed"], 0);
}

// H17: by position, so that the rows of rejected drafts are overwritten there too.
TEST_F(Demo, VerifiesRowsThatTheWorkerKeepsByRequest) {
  const auto runs = run({"--requests", "40", "--kv-blocks", "200", "--step-ms", "0", "--transport",
                         "device", "--host-cache", "per-request", "--async-depth", "3",
                         "--speculate", "2", "--opt-in", "0.8", "--abort-rate", "0.2"});
  EXPECT_GT(runs[0]["rows_expected"], 1000);
  EXPECT_EQ(runs[0]["rows_verified"], runs[0]["rows_expected"]);
  EXPECT_EQ(runs[0]["prefix_hit_tokens"], 0);
  EXPECT_EQ(runs[0]["requests_taken_early"], 0);
  EXPECT_GT(runs[0]["preemptions"], 0);
  EXPECT_GT(runs[0]["requests_aborted"], 0);
  EXPECT_GT(runs[0]["drafts_rejected"], 0);
}

// As after a restart, or in another engine.
TEST_F(Demo, VerifiesWeightsOverBothTransports) {
  for (const char* weights : {"float32", "bfloat16"}) {
    const auto runs =
        run({"--requests", "20", "--kv-blocks", "200", "--step-ms", "0", "--weights", weights});
    ASSERT_EQ(runs.size(), 2U);
    for (const auto& one : runs) {
      EXPECT_EQ(one["rows_verified"], one["rows_expected"]);
      EXPECT_GT(one["rows_verified"], 0);
    }
  }
}

TEST_F(Demo, TakesRowsBackThatAnotherRunOffloaded) {
  const std::vector<std::string> options{
      "--requests",       "20",   "--kv-blocks",   "160",
      "--step-ms",        "0",    "--transport",   "shm",
      "--offload-blocks", "1000", "--offload-dir", (directory_ / "blocks").string()};
  const auto first = run(options)[0];
  EXPECT_GT(first["blocks_offloaded"], 0);
  const auto second = run(options)[0];
  EXPECT_EQ(second["rows_verified"], first["rows_expected"]);
  EXPECT_GT(second["offload_hit_tokens"], first["offload_hit_tokens"]);
}

TEST_F(Demo, RefusesOptionsThatMakeNoSenseTogether) {
  expect_error({"--layout", "wire"}, "--layout wire is of --transport shm");
  expect_error({"--layout", "wire", "--transport", "shm", "--weights", "float32"},
               "has no room for --weights");
  expect_error({"--layout", "wire", "--transport", "shm", "--offload-blocks", "5"},
               "--layout wire cannot tell which are");
  expect_error({"--host-cache", "per-request"},
               "--host-cache per-request is of --transport device");
  for (const char* option : {"--stream", "--follow-up", "--offload-blocks"}) {
    expect_error({"--host-cache", "per-request", "--transport", "device", option, "1"},
                 "has no rows by slot for --stream");
  }
  expect_error({"--host-cache", "per-request", "--transport", "device", "--hold"},
               "has no rows by slot");
  expect_error({"--offload-dir", directory_.string()}, "--offload-dir without --offload-blocks");
}

TEST_F(Demo, PublishesNothingWhenNobodyAsks) {
  for (const auto& run : run({"--requests", "10", "--opt-in", "0", "--step-ms", "0"})) {
    EXPECT_GT(run["tokens"], 1000);
    EXPECT_EQ(run["rows_published"], 0);
    EXPECT_EQ(run["rows_expected"], 0);
  }
}

TEST_F(Demo, ServesDataParallelWorkersAndWideIds) {
  const auto runs = run({"--requests", "12", "--workers", "3", "--model", "nemotron-3-super",
                         "--step-ms", "0", "--transport", "device"});
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0]["bytes_per_row"], 40 * 22 * 2);
  EXPECT_GT(runs[0]["rows_expected"], 1000);
  EXPECT_EQ(runs[0]["rows_verified"], runs[0]["rows_expected"]);
}

TEST_F(Demo, TakesAModelByItsConfiguration) {
  const std::string config =
      file("config.json",
           R"({"num_hidden_layers": 6, "n_routed_experts": 300, "num_experts_per_tok": 3,
               "first_k_dense_replace": 1})");
  const auto runs = run({"--requests", "5", "--model", config, "--transport", "shm"});
  EXPECT_EQ(runs[0]["bytes_per_row"], 5 * 3 * 2);
  EXPECT_EQ(runs[0]["model"], config);
}

TEST_F(Demo, TakesAnyTraceFileAndCountsWhatCanNeverFit) {
  const std::string trace = file("t.csv",
                                 "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                 "t,300,5\nt,5000,5\nt,100,1\nt,1,1\n");
  const auto runs = run({"--trace", trace, "--kv-blocks", "100", "--transport", "shm"});
  EXPECT_EQ(runs[0]["trace"], "t.csv");
  EXPECT_EQ(runs[0]["requests"], 4);
  EXPECT_EQ(runs[0]["requests_rejected"], 1);
  EXPECT_EQ(runs[0]["rows_expected"], 304 + 100 + 1);
  EXPECT_EQ(runs[0]["rows_verified"], 304 + 100 + 1);
}

TEST_F(Demo, FailsWhenEveryRequestWasRejected) {
  const std::string trace = file("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nt,5000,5\n");
  expect_error({"--trace", trace, "--kv-blocks", "100", "--transport", "shm"},
               "rejected t.csv:2: 5005 tokens need 313 KV blocks, there are 100");
  expect_error({"--trace", trace, "--kv-blocks", "100", "--transport", "shm"},
               "FAILED: shm: nothing was served: all 1 requests were rejected");
}

TEST_F(Demo, RefusesBadInputBeforeItStarts) {
  const std::string trace =
      file("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nt,300,5\nt,x,5\n");
  expect_error({"--trace", trace}, "t.csv:3: ContextTokens is 'x'");
  expect_error({"--model", "gpt-2"}, "no model is known as \"gpt-2\"; known are");
  expect_error({"--model", file("dense.json", R"({"num_hidden_layers": 6})")}, "experts");
  for (const auto& [option, value, text] :
       std::vector<std::array<std::string, 3>>{{"--step-ms", "nan", "nan is not a time"},
                                               {"--opt-in", "1.5", "1.5 is not a share of 0 to 1"},
                                               {"--abort-rate", "nan", "nan is not a share"},
                                               {"--async-depth", "5", "5 not in range"},
                                               {"--speculate", "-1", "-1 not in range"}}) {
    Program refused({MOETAP_DEMO, option, value});
    EXPECT_EQ(refused.join(), 105) << option;
    EXPECT_NE(refused.output().find(text), std::string::npos) << refused.output();
  }
}

TEST_F(Demo, LooksWhetherItCanWriteItsFiguresBeforeItRuns) {
  Program demo(command({"--json", (directory_ / "none" / "out.json").string()}));
  EXPECT_EQ(demo.join(), 1);
  EXPECT_NE(demo.output().find("cannot write "), std::string::npos) << demo.output();
  EXPECT_EQ(demo.output().find("KV blocks"), std::string::npos) << demo.output();
}

TEST_F(Demo, SaysWhyAWorkerCannotStart) {
  Program demo({MOETAP_DEMO, "--device", "abacus", "--requests", "2"});
  EXPECT_EQ(demo.join(), 1);
  EXPECT_NE(demo.output().find("worker 0 (pid "), std::string::npos) << demo.output();
  EXPECT_NE(demo.output().find("abacus"), std::string::npos) << demo.output();
}

// Has ended, also if its status was not collected yet (init may not, in a container).
bool ended(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text{std::istreambuf_iterator<char>(in), {}};
  return text.empty() || text.find(") Z ") != text.npos;
}

// Polls until something outside this process is so. False when patience runs out.
template <class Predicate>
bool eventually(Predicate&& predicate) {
  const auto deadline = std::chrono::steady_clock::now() + Program::kPatience;
  while (!predicate()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Two workers with so much to do that they run until something happens to them.
struct Run {
  std::string transport;
  std::string step_ms;
};

class RunningDemo : public Demo, public testing::WithParamInterface<Run> {
 protected:
  RunningDemo()
      : demo_(command({"--requests", "5000", "--step-ms", GetParam().step_ms, "--workers", "2",
                       "--transport", GetParam().transport})) {
    EXPECT_TRUE(eventually([&] { return shared_memory_of(demo_.pid()).size() >= 2; }));
    workers_ = children_of(demo_.pid());
    EXPECT_EQ(workers_.size(), 2U);
  }

  void expect_nothing_left() {
    for (const pid_t worker : workers_) {
      EXPECT_TRUE(eventually([&] { return ended(worker); }));
    }
    EXPECT_EQ(shared_memory_of(pid_), std::vector<std::string>{});
  }

  Program demo_;
  pid_t pid_ = demo_.pid();
  std::vector<pid_t> workers_;
};

TEST_P(RunningDemo, EndsItsWorkersAndTheirSharedMemoryWhenInterrupted) {
  // As Ctrl-C on a terminal: to all of them.
  for (const pid_t worker : workers_) ::kill(worker, SIGINT);
  ::kill(demo_.pid(), SIGINT);
  EXPECT_EQ(demo_.join(), 130) << demo_.output();
  expect_nothing_left();
}

TEST_P(RunningDemo, ItsWorkersLeaveWhenItIsKilled) {
  ::kill(demo_.pid(), SIGKILL);
  EXPECT_EQ(demo_.join(), -SIGKILL);
  expect_nothing_left();
}

TEST_P(RunningDemo, SaysWhichWorkerDiedOfWhat) {
  ASSERT_EQ(workers_.size(), 2U);
  ::kill(workers_[1], SIGKILL);
  EXPECT_EQ(demo_.join(), 1);
  const std::string died = fmt::format("worker 1 (pid {}) ended: by signal 9", workers_[1]);
  EXPECT_NE(demo_.output().find(died), std::string::npos) << demo_.output();
  // The next owner of a killed worker's name would reclaim its memory, but there will be none.
  for (const std::string& name : shared_memory_of(pid_)) fs::remove("/dev/shm/" + name);
}

// Whether each thread of the process sleeps (S) or is stopped (T).
bool all_threads_are(char state, pid_t pid) {
  std::error_code ended;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", pid), ended)) {
    std::ifstream in(thread.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.find(fmt::format(") {} ", state)) == text.npos) return false;
  }
  return !ended;
}

// Between a worker's word that it is ready and the scheduler's attaching to its shared memory: the
// scheduler is stopped until its worker is gone.
TEST_F(Demo, SaysWhichWorkerDiedBeforeItAttached) {
  for (const char* transport : {"shm", "device"}) {
    Program demo(command({"--requests", "5000", "--step-ms", "5", "--transport", transport}));
    const pid_t pid = demo.pid();
    ASSERT_TRUE(eventually([&] { return !children_of(pid).empty(); }));
    const pid_t worker = children_of(pid).front();
    ::kill(worker, SIGSTOP);
    // Its engine has a thread of its own, and has told the worker what to make.
    ASSERT_TRUE(eventually([&] {
      const auto threads = fs::directory_iterator(fmt::format("/proc/{}/task", pid));
      return std::distance(fs::begin(threads), fs::end(threads)) > 1 && all_threads_are('S', pid);
    }));
    ::kill(pid, SIGSTOP);
    ASSERT_TRUE(eventually([&] { return all_threads_are('T', pid); }));
    ::kill(worker, SIGCONT);
    int asleep = 0;  // in a row, so not just while it starts
    ASSERT_TRUE(eventually([&] {
      asleep = all_threads_are('S', worker) && !shared_memory_of(pid).empty() ? asleep + 1 : 0;
      return asleep == 50;
    }));
    ::kill(worker, SIGKILL);
    ASSERT_TRUE(eventually([&] { return ended(worker); }));
    const auto start = std::chrono::steady_clock::now();
    ::kill(pid, SIGCONT);
    EXPECT_EQ(demo.join(), 1);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(25))
        << "of 30 at most";
    const std::string died = fmt::format("worker 0 (pid {}) ended: by signal 9", worker);
    EXPECT_NE(demo.output().find(died), std::string::npos) << demo.output();
    for (const std::string& name : shared_memory_of(pid)) fs::remove("/dev/shm/" + name);
  }
}

// A terminal sends Ctrl-C to everybody, but it is the scheduler who ends the workers.
TEST_F(Demo, ItsWorkersDoNotMindAnInterrupt) {
  Program demo(command({"--requests", "64", "--step-ms", "5", "--transport", "shm"}));
  ASSERT_TRUE(eventually([&] { return !shared_memory_of(demo.pid()).empty(); }));
  for (const pid_t worker : children_of(demo.pid())) ::kill(worker, SIGINT);
  EXPECT_EQ(demo.join(), 0) << demo.output();
}

// It waits for a worker that never answers.
TEST_F(Demo, CanBeInterruptedWhileAWorkerHangs) {
  Program demo(command({"--requests", "5000", "--step-ms", "5000", "--transport", "shm"}));
  // Once the scheduler is attached it waits for rows.
  ASSERT_TRUE(eventually([&] {
    std::ifstream in(fmt::format("/proc/{}/maps", demo.pid()));
    const std::string maps{std::istreambuf_iterator<char>(in), {}};
    return maps.find(fmt::format("demo-{}_", demo.pid())) != maps.npos;
  }));
  for (const pid_t worker : children_of(demo.pid())) ::kill(worker, SIGSTOP);
  ::kill(demo.pid(), SIGINT);
  const pid_t pid = demo.pid();
  EXPECT_EQ(demo.join(), 130) << demo.output();
  for (const std::string& name : shared_memory_of(pid)) fs::remove("/dev/shm/" + name);
}

// Steps that take longer than the scheduler's looks at its worker, and shorter ones.
INSTANTIATE_TEST_SUITE_P(Runs, RunningDemo,
                         testing::Values(Run{"shm", "2"}, Run{"shm", "400"}, Run{"device", "2"},
                                         Run{"device", "400"}),
                         [](const auto& info) {
                           return info.param.transport + "_" + info.param.step_ms + "ms";
                         });

}  // namespace
}  // namespace demo::test
