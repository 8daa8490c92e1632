// Every guard against a hazard of the contract is switched off once, and the simulation must find
// that it is. One that it does not find is a hole in the simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "test/injection/injection.h"
#include "test/simulation/simulation.h"

namespace moetap::simulation {
namespace {

struct Fault {
  const char* guard;    // its hazard first
  std::uint64_t seeds;  // within which it must be found
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.guard; }

// More than ten times the seeds that were needed when the fault was entered: see doc/hazards.md.
constexpr Fault kFaults[] = {
    {"H1 bound once", 100},
    {"H1 captured once", 100},
    {"H2 rows of tokens only", 100},
    {"H2 missing routes", 100},
    {"H3 every layer", 100},
    {"H4 room in the device cache", 100},
    {"H5 rows of a layout", 100},
    {"H5 this rank's rows", 100},
    {"H8 requests follow their blocks", 100},
    {"H9 rows of an earlier owner", 100},
    {"H9 rows from before the window", 100},
    {"H10 rows of the first run", 100},
    {"H10 rows that were kept of the first run", 100},
    {"H11 blocks that are held", 100},
    {"H11 rows from before the window", 100},
    {"H13 a row that the device reads", 100},
    {"H13 enough rows", 100},
    {"H14 a full ring", 100},
    {"H15 the snapshot after the copy", 1000},
    {"H15 the copy after the snapshot", 100},
    {"H16 the whole range", 1000},
    {"H17 rows of accepted tokens", 100},
    {"H18 only what is new", 100},
    {"H19 one row less than tokens", 100},
    {"H20 ids of experts", 100},
    {"H21 a type for every id", 100},
    {"H21 a narrow type with room", 100},
    {"H25 no put while rows are lent", 1000},
    {"H25 no step while rows are lent", 1000},
    {"H27 declared columns", 100},
    {"H28 ranges that meet", 100},
    {"H29 rows of old weights", 100},
    {"H30 rows of drafts", 100},
    {"H30 rows of declared drafts", 1000},
    {"H30 tokens of an undeclared tree", 2000},
    {"H30 a last span of which not all stands", 2000},
    {"H30 blocks that moved since", 1000},
    {"H30 rows over drafts that moved", 1000},
    {"H30 where a step begins", 1000},
    {"H30 guesses that go back", 2000},
    {"H30 rows where a step no longer begins", 1000},
    {"H30 rows under a guess", 1000},
    {"H30 tokens that stand elsewhere", 100},
    {"H32 distinct picks", 100},
    {"H35 all in turn", 1000},
    {"H36 rows from before a dropped step", 100},
    {"H36 rows that were kept from before a dropped step", 1000},
    {"H37 a step that was given up", 100},
    {"H37 the reader hears of it", 100},
    {"H37 rows from before a step whose slots are not known", 100},
    {"H39 rows of the run that sampled", 100},
    {"H39 tokens that an earlier run sampled late", 100},
};

class Faults : public testing::TestWithParam<Fault> {};

TEST_P(Faults, AreFound) {
  const injection::SwitchedOff off(GetParam().guard);
  Counts counts;
  for (std::uint64_t seed = 1; seed <= GetParam().seeds; ++seed) {
    const Outcome outcome = simulate(seed, counts);
    if (outcome.failure.empty()) continue;
    RecordProperty("seed", static_cast<int>(seed));
    std::printf("seed %d: %s\n", static_cast<int>(seed), outcome.failure.c_str());
    return;
  }
  FAIL() << "nothing is wrong in " << GetParam().seeds << " seeds without it";
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream source(file);
  return {std::istreambuf_iterator<char>(source), {}};
}

// A guard that nothing switches off has no proof that anything notices its removal.
TEST(AllFaults, AreTheGuardsOfTheLibrary) {
  const std::filesystem::path root = MOETAP_SOURCE_ROOT;
  std::set<std::string> switched;
  for (const Fault& fault : kFaults) switched.insert(fault.guard);
  const auto add_all = [](const std::string& text, const char* call, std::set<std::string>& to) {
    const std::regex guard(std::string(call) + "\\(\"(H[^\"]+)\"\\)");
    for (std::sregex_iterator match(text.begin(), text.end(), guard), end; match != end; ++match) {
      to.insert((*match)[1]);
    }
  };
  add_all(text_of(root / "test/ipc/guards_off_test.cc"), "SwitchedOff off", switched);
  std::set<std::string> guards;
  for (const char* folder : {"lib", "ipc", "gpu"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!file.is_regular_file() || file.path().filename() == "injection.h") continue;
      add_all(text_of(file.path()), "_OFF", guards);
    }
  }
  std::vector<std::string> only_one_has;
  std::ranges::set_symmetric_difference(guards, switched, std::back_inserter(only_one_has));
  EXPECT_EQ(only_one_has, std::vector<std::string>{});
}

std::string fault_name(const testing::TestParamInfo<Fault>& info) {
  std::string name = info.param.guard;
  std::erase(name, '\'');
  std::ranges::replace(name, ' ', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Guard, Faults, testing::ValuesIn(kFaults), fault_name);

}  // namespace
}  // namespace moetap::simulation
