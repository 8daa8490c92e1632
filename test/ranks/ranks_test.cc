// An engine of several ranks, started by mpirun, and its scheduler, which is this process: every
// row that it reads is exact, or says that it is not.
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "test/examples/program.h"
#include "test/ipc/temporary_directory.h"
#include "test/ranks/plan.h"

namespace moetap::test {
namespace {

using demo::test::Program;

#if defined(__SANITIZE_THREAD__)
constexpr const char* kSkip = "ThreadSanitizer does not know MPI, which is not built with it";
#elif !defined(MPIRUN)
constexpr const char* kSkip = "built without MPI: install Open MPI (libopenmpi-dev, openmpi-bin)";
#else
constexpr const char* kSkip = nullptr;
#endif

#if !defined(MPIRUN)
#define MPIRUN ""
#define RANKS_WORKER ""
#endif

// As root and in containers too, on any number of cores, with processes of this machine only. What
// a rank that is killed leaves of MPI's is in `directory`.
void let_mpi_run_anywhere(const std::string& directory) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("OMPI_MCA_orte_tmpdir_base", directory);
  set("OMPI_MCA_btl_vader_backing_directory", directory);
  set("OMPI_ALLOW_RUN_AS_ROOT", "1");
  set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  set("OMPI_MCA_rmaps_base_oversubscribe", "1");
  set("OMPI_MCA_hwloc_base_binding_policy", "none");
  set("OMPI_MCA_mpi_yield_when_idle", "1");
  set("OMPI_MCA_plm", "isolated");
  set("OMPI_MCA_btl", "self,vader");
  set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
}

std::vector<std::string> command_of(const Plan& plan) {
  std::vector<std::string> command = {MPIRUN, "--enable-recovery", "-n",
                                      std::to_string(plan.ranks()), RANKS_WORKER};
  for (std::string& argument : plan.arguments()) command.push_back(std::move(argument));
  return command;
}

class Ranks : public testing::Test {
 protected:
  void SetUp() override {
    if (kSkip != nullptr) GTEST_SKIP() << kSkip;
    let_mpi_run_anywhere(directory.path());
  }
  // A rank that was killed leaves its memory.
  ~Ranks() override {
    std::error_code ignored;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm", ignored)) {
      if (file.path().filename().string().find(plan.instance + "_") != std::string::npos) {
        std::filesystem::remove(file.path(), ignored);
      }
    }
  }

  void start() { workers = std::make_unique<Program>(command_of(plan)); }
  // Lets the ranks end, and returns what they said.
  std::string end() {
    workers->close_input();
    EXPECT_EQ(workers->join(), 0) << workers->output();
    return workers->output();
  }

  Reader& reader(int dp_rank) {
    auto& own = readers[static_cast<std::size_t>(dp_rank)];
    if (!own) {
      Topology topology = plan.topology(0);
      topology.dp_rank = dp_rank;
      own = std::make_unique<Reader>(make_joined_reader(
          plan.engine(), topology, plan.transport == "shm" ? make_shm_reader : make_device_reader));
    }
    return *own;
  }

  void expect_rows(int dp_rank, Step step, StepWindow window);
  void expect_missing(int dp_rank, Step step);
  void expect_all_exact();

  static std::string unique_name() {
    static int counter = 0;
    return "ranks-" + std::to_string(getpid()) + "-" + std::to_string(++counter);
  }

  TemporaryDirectory directory;
  Plan plan{.instance = unique_name()};
  std::unique_ptr<Program> workers;
  std::unique_ptr<Reader> readers[4];
};

void Ranks::expect_rows(int dp_rank, Step step, StepWindow window) {
  const std::vector<Slot> slots = plan.slots(step, dp_rank);
  const std::size_t row_bytes = plan.router().shape.row_bytes();
  std::vector<std::byte> rows(slots.size() * row_bytes);
  std::vector<RowState> states(slots.size());
  reader(dp_rank).read(slots, {&window, 1}, rows, states);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto at = rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    const std::vector<std::byte> row(at, at + static_cast<std::ptrdiff_t>(row_bytes));
    EXPECT_EQ(row_state_name(states[i]), "present") << "step " << step << " token " << i;
    EXPECT_EQ(row, plan.router().row(step, Plan::router_row(dp_rank, static_cast<std::int64_t>(i))))
        << "step " << step << " token " << i << " of data-parallel rank " << dp_rank;
  }
}

void Ranks::expect_missing(int dp_rank, Step step) {
  const std::vector<Slot> slots = plan.slots(step, dp_rank);
  std::vector<std::byte> rows(slots.size() * plan.router().shape.row_bytes());
  std::vector<RowState> states(slots.size());
  const StepWindow window{step, step};
  reader(dp_rank).read(slots, {&window, 1}, rows, states);
  for (const RowState state : states) EXPECT_EQ(row_state_name(state), "missing");
}

void Ranks::expect_all_exact() {
  start();
  const auto last = static_cast<Step>(plan.steps);
  for (int dp_rank = 0; dp_rank < plan.dp; ++dp_rank) (void)reader(dp_rank);
  for (Step step = 1; step <= last; ++step) {
    for (int dp_rank = 0; dp_rank < plan.dp; ++dp_rank) {
      reader(dp_rank).wait_for(step, Milliseconds(60'000));
      expect_rows(dp_rank, step, {step, step});
    }
  }
  if (plan.parts != "published") {  // which must be read step by step
    for (int dp_rank = 0; dp_rank < plan.dp; ++dp_rank) expect_rows(dp_rank, 2, {1, last});
  }
  EXPECT_EQ(end(), "");
}

struct Case {
  const char* name;
  Plan plan;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class EveryRow : public Ranks, public testing::WithParamInterface<Case> {
 protected:
  EveryRow() {
    const std::string name = std::move(plan.instance);
    plan = GetParam().plan;
    plan.instance = name;
  }
};

const Case kCases[] = {
    {"TwoEqualPartsShm", {.tp = 2, .parts = "even"}},
    {"FourEqualPartsDevice", {.transport = "device", .tp = 4, .parts = "even"}},
    {"FourUnequalPartsShm", {.tp = 4, .parts = "uneven"}},
    {"TwoUnequalPartsBeforeAGraphDevice",
     {.transport = "device", .tp = 2, .parts = "uneven", .graph = "outside"}},
    {"FourPartsBeforeAGraphShm", {.tp = 4, .parts = "even", .graph = "outside"}},
    {"FourPublishedPartsShm", {.tp = 4, .parts = "published"}},
    {"TwoPublishedPartsOfTwoStagesDevice",
     {.transport = "device", .tp = 2, .pp = 2, .parts = "published"}},
    {"ConcatenatedDataParallelShm", {.dp = 2, .tp = 2, .layout = "concatenated"}},
    {"PaddedDataParallelGraphDevice",
     {.transport = "device", .dp = 2, .tp = 2, .layout = "padded", .graph = "outside"}},
    {"DataParallelWithPartsDevice", {.transport = "device", .dp = 2, .tp = 2, .parts = "uneven"}},
    {"TwoStagesShm", {.pp = 2}},
    {"TwoStagesDevice", {.transport = "device", .pp = 2}},
    {"ThreeStagesOneWithoutMoeLayersShm", {.pp = 3}},
    {"ThreeStagesOneWithoutMoeLayersDevice", {.transport = "device", .pp = 3}},
    {"TwoStagesWithPartsShm", {.tp = 2, .pp = 2, .parts = "uneven"}},
    {"WeighedUnequalPartsBeforeAGraphDevice",
     {.transport = "device", .tp = 4, .parts = "uneven", .graph = "outside", .weights = "float32"}},
    {"WeighedPartsOfTwoStagesShm", {.tp = 2, .pp = 2, .parts = "even", .weights = "bfloat16"}},
    {"WeighedPublishedPartsDevice",
     {.transport = "device", .tp = 2, .parts = "published", .weights = "float32"}},
    {"WeighedPaddedDataParallelShm", {.dp = 2, .tp = 2, .layout = "padded", .weights = "bfloat16"}},
    {"ARankThatIsLateButInTime", {.tp = 4, .parts = "uneven", .trouble = "late"}},
};
INSTANTIATE_TEST_SUITE_P(All, EveryRow, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryRow, IsExact) { expect_all_exact(); }  // H5, H6

class BrokenRanks : public Ranks {
 protected:
  // Runs up to the step that cannot be gathered, and returns what the ranks said.
  std::string run() {
    start();
    for (Step step = 1; step < Step(plan.trouble_step); ++step) {
      reader(0).wait_for(step, Milliseconds(60'000));
      expect_rows(0, step, {step, step});
    }
    try {
      reader(0).wait_for(Step(plan.trouble_step), Milliseconds(60'000));
      ADD_FAILURE() << "a step whose parts were not gathered was published";
    } catch (const StepFailed& failed) {
      EXPECT_NE(failed.reason().find("did not come"), std::string::npos) << failed.reason();
    }
    expect_missing(0, Step(plan.trouble_step));
    expect_rows(0, 1, {1, 1});
    return end();
  }

  static void expect_said(const std::string& output, const std::string& pattern) {
    EXPECT_TRUE(std::regex_search(output, std::regex(pattern)))
        << "'" << pattern << "' is not in:\n"
        << output;
  }
};

TEST_F(BrokenRanks, ADeadRankIsNamedByAllOthers) {
  plan.tp = 4;
  plan.parts = "uneven";
  plan.trouble = "dies";
  plan.timeout_ms = 1500;
  const std::string said = run();
  for (const char* rank : {"0", "2", "3"}) {
    expect_said(said, std::string("rank ") + rank +
                          ": TimeoutError: .*waited 1500 ms, and of 4 ranks these are missing: 1;");
  }
}

TEST_F(BrokenRanks, ARankThatComesTooLateIsNamed) {
  plan.tp = 2;
  plan.parts = "even";
  plan.trouble = "too_late";
  plan.timeout_ms = 700;
  expect_said(run(), "rank 0: TimeoutError: .*waited 700 ms, and of 2 ranks these are missing: 1;");
}

TEST_F(BrokenRanks, RanksThatCountOtherwiseAreFound) {
  plan.tp = 4;
  plan.parts = "even";
  plan.trouble = "miscounts";
  plan.timeout_ms = 5000;
  const std::string said = run();
  // Its own part is as long as rank 0 expects: what gives it away is the whole.
  expect_said(said, "rank 0: MismatchError: rank 1 puts its part at 9 of 30 elements, .* 9 of 36");
  expect_said(said, "rank 1: MismatchError");
  expect_said(said, "rank 3: MismatchError");
}

TEST_F(Ranks, AGatherOverMpiInsideAGraphIsRefused) {
  plan.tp = 2;
  plan.parts = "even";
  plan.graph = "inside";
  start();
  const std::string said = end();
  for (const char* rank : {"rank 0: ", "rank 1: "}) {
    EXPECT_NE(said.find(std::string(rank) + "StateError: gather() over MPI"), said.npos) << said;
  }
}

}  // namespace
}  // namespace moetap::test
