// Each process killed at each point, on each side of each transport. A case runs 30 kills;
// MOETAP_CRASH_KILLS makes it that many (`./dev soak crash`), MOETAP_CRASH_SEED replays a failure.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>
#include <set>
#include <string>

#include "session.h"

namespace moetap::crash {
namespace {

constexpr Case kCases[] = {
    {Transport::shm, Side::worker, "create opened"},
    {Transport::shm, Side::worker, "create claimed"},
    {Transport::shm, Side::worker, "create reserved"},
    {Transport::shm, Side::worker, "create lock file"},
    {Transport::shm, Side::worker, "create published"},
    {Transport::shm, Side::worker, "reclaim claimed"},
    {Transport::shm, Side::worker, "reclaim lock file removed"},
    {Transport::shm, Side::worker, "reclaim unlinked"},
    {Transport::shm, Side::worker, "publish copied to the host", 6},
    {Transport::shm, Side::worker, "publish locked", 6},
    {Transport::shm, Side::worker, "scatter marked", 6, true},
    {Transport::shm, Side::worker, "scatter copying", 12, true},
    {Transport::shm, Side::worker, "scatter copied", 6, true},
    {Transport::shm, Side::worker, "scatter stamped", 6},
    {Transport::shm, Side::worker, "publish unlocked", 6},
    {Transport::shm, Side::worker, "publish announced", 6},
    {Transport::shm, Side::worker, "close lock file removed"},
    {Transport::shm, Side::worker, "close"},
    {Transport::shm, Side::worker, "close unlinked"},
    {Transport::shm, Side::worker, nullptr},
    {Transport::shm, Side::reader, "attach opened"},
    {Transport::shm, Side::reader, "attach locked"},
    {Transport::shm, Side::reader, "read locked", 12},
    {Transport::shm, Side::reader, "read copied", 12},
    {Transport::shm, Side::reader, "put copied", 3},
    {Transport::shm, Side::reader, nullptr},
    {Transport::wire, Side::worker, "create opened"},
    {Transport::wire, Side::worker, "create claimed"},
    {Transport::wire, Side::worker, "create reserved"},
    {Transport::wire, Side::worker, "publish locked", 6},
    {Transport::wire, Side::worker, "publish copying", 12},
    {Transport::wire, Side::worker, "close"},
    {Transport::wire, Side::worker, "close unlinked"},
    {Transport::wire, Side::reader, "read locked", 5},
    {Transport::device, Side::worker, "create opened"},
    {Transport::device, Side::worker, "create claimed"},
    {Transport::device, Side::worker, "create reserved"},
    {Transport::device, Side::worker, "create published"},
    {Transport::device, Side::worker, "reclaim claimed"},
    {Transport::device, Side::worker, "reclaim lock file removed"},
    {Transport::device, Side::worker, "reclaim unlinked"},
    {Transport::device, Side::worker, "hand-over acquired", 6},
    {Transport::device, Side::worker, "publish queued", 6},
    {Transport::device, Side::worker, "hand-over arrived", 6},
    {Transport::device, Side::worker, "hand-over described", 6},
    {Transport::device, Side::worker, "hand-over committed", 6},
    {Transport::device, Side::worker, "close"},
    {Transport::device, Side::worker, "close unlinked"},
    {Transport::device, Side::worker, nullptr},
    {Transport::device, Side::reader, "attach opened"},
    {Transport::device, Side::reader, "attach claimed"},
    {Transport::device, Side::reader, "read peeked", 6},
    {Transport::device, Side::reader, "scatter marked", 6},
    {Transport::device, Side::reader, "scatter copying", 12},
    {Transport::device, Side::reader, "scatter copied", 6},
    {Transport::device, Side::reader, "scatter stamped", 6},
    {Transport::device, Side::reader, "read taken in", 6},
    {Transport::device, Side::reader, "read released", 6},
    {Transport::device, Side::reader, nullptr},
    {Transport::request, Side::worker, "hand-over kept", 6},
    {Transport::request, Side::worker, "hand-over of rows", 6},
    {Transport::request, Side::worker, "hand-over described", 12},
    {Transport::request, Side::worker, "hand-over committed", 12},
    {Transport::request, Side::worker, nullptr},
    {Transport::request, Side::reader, "attach claimed"},
    {Transport::request, Side::reader, "read peeked", 12},
    {Transport::request, Side::reader, "read taken in", 12},
    {Transport::request, Side::reader, "read released", 12},
    {Transport::request, Side::reader, nullptr},
};

std::uint64_t from_environment(const char* variable, std::uint64_t otherwise) {
  const char* set = std::getenv(variable);
  return set == nullptr ? otherwise : std::strtoull(set, nullptr, 10);
}

class Crash : public testing::TestWithParam<Case> {};

TEST_P(Crash, SurvivorsGetRightRowsOrAnErrorAndNothingIsLeft) {
  const Case c = GetParam();
  const auto kills = static_cast<int>(from_environment("MOETAP_CRASH_KILLS", 30));
  const bool soak = std::getenv("MOETAP_CRASH_KILLS") != nullptr;
  const std::uint64_t first =
      from_environment("MOETAP_CRASH_SEED", soak ? std::random_device{}() : 1);
  int killed = 0;
  std::uint64_t rows = 0;
  for (std::uint64_t seed = first; killed < kills; ++seed) {
    const Outcome outcome = run_session(c, seed, std::min(kills - killed, kMostKills));
    killed += outcome.killed;
    rows += outcome.rows;
    if (HasFailure() || killed == 0) {
      ADD_FAILURE() << killed << " kills at this point; again: MOETAP_CRASH_SEED=" << seed
                    << " MOETAP_CRASH_KILLS=" << kills;
      break;
    }
  }
  std::printf("%-40s %6d kills, %8llu rows verified\n", name_of(c).c_str(), killed,
              static_cast<unsigned long long>(rows));
  EXPECT_GT(rows, 0u);
}

TEST(CrashCases, EveryPointOfTheLibraryHasOne) {
  std::set<std::string> points;
  for (const char* folder : {"lib", "ipc", "gpu"}) {
    const std::filesystem::path root = std::filesystem::path(MOETAP_SOURCE_ROOT) / folder;
    for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
      if (!file.is_regular_file()) continue;
      std::ifstream source(file.path());
      const std::string text{std::istreambuf_iterator<char>(source), {}};
      const std::regex point("MOETAP_POINT\\(\"([^\"]+)\"\\)");
      for (std::sregex_iterator match(text.begin(), text.end(), point), end; match != end;
           ++match) {
        points.insert((*match)[1]);
      }
    }
  }
  EXPECT_GT(points.size(), 30u);
  for (const Case& c : kCases) {
    if (c.point != nullptr) points.erase(c.point);
  }
  EXPECT_TRUE(points.empty()) << "nobody is killed at '" << *points.begin() << "'";
}

INSTANTIATE_TEST_SUITE_P(EachPoint, Crash, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name;
  bool start = true;
  for (const char c : name_of(info.param)) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      name += start ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    }
    start = c == ' ' || c == '-';
  }
  return name;
});

}  // namespace
}  // namespace moetap::crash
