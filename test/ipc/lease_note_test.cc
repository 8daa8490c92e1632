// The note in shared memory that names a lease to another process (H25).
#include "ipc/reader/lease_note.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <regex>
#include <string>
#include <thread>

#include "test/ipc/message_of.h"

namespace moetap {
namespace {

using test::contains;
using Clock = LeaseNote::Clock;
using Milliseconds = std::chrono::milliseconds;

TEST(LeaseNote, SaysWhoHasHowManySinceWhen) {
  LeaseNote note;
  EXPECT_EQ(note.describe(), "");
  // The clock begins with the machine, which need not have run for long.
  const Clock::time_point since{Clock::now().time_since_epoch() / 2};
  note.write(2, "request 7", since);
  const auto least = std::chrono::floor<Milliseconds>(Clock::now() - since);
  const std::string text = note.describe();
  const auto most = std::chrono::floor<Milliseconds>(Clock::now() - since);
  std::smatch age;
  ASSERT_TRUE(std::regex_match(
      text, age, std::regex("2 leases are out, the oldest is held by request 7 for ([0-9]+) ms")))
      << text;
  EXPECT_GE(std::stoll(age[1]), least.count());
  EXPECT_LE(std::stoll(age[1]), most.count());
  note.write(1, "b", Clock::now());
  EXPECT_TRUE(contains(note.describe(), "a lease is out, held by b for ")) << note.describe();
  note.write(0, {}, {});
  EXPECT_EQ(note.describe(), "");
}

TEST(LeaseNote, ShortensALongHolder) {
  LeaseNote note;
  note.write(1, std::string(LeaseNote::kHolderBytes, 'x'), Clock::now());
  EXPECT_TRUE(contains(note.describe(), std::string(LeaseNote::kHolderBytes, 'x') + " for"));
  note.write(1, std::string(5000, 'y'), Clock::now());
  EXPECT_TRUE(contains(note.describe(), std::string(LeaseNote::kHolderBytes - 3, 'y') + "... for"))
      << note.describe();
}

TEST(LeaseNote, IsPrintableWhateverTheHolder) {
  LeaseNote note;
  note.write(1, "a\nb\x1b[31m\x7f\xc3\xa4", Clock::now());
  EXPECT_TRUE(contains(note.describe(), "held by a?b?[31m??? for ")) << note.describe();
}

TEST(LeaseNote, OfATimeThatCannotBeIsStillANote) {
  LeaseNote note;
  for (const auto since : {Clock::time_point::min(), Clock::time_point::max()}) {
    note.write(1, "a", since);
    EXPECT_TRUE(contains(note.describe(), "held by a for ")) << note.describe();
    EXPECT_FALSE(contains(note.describe(), "for -")) << note.describe();
  }
}

TEST(LeaseNote, SurvivesAWriterThatDiedInTheMiddle) {
  LeaseNote note;
  note.write(1, "a", Clock::now());
  const std::uint64_t odd = 3;
  std::memcpy(static_cast<void*>(&note), &odd, sizeof odd);  // version_
  EXPECT_TRUE(contains(note.describe(), "never finished")) << note.describe();
  note.write(1, "b", Clock::now());
  EXPECT_TRUE(contains(note.describe(), "held by b for ")) << note.describe();
}

TEST(LeaseNote, IsBoundedInMemoryFullOfAnything) {
  LeaseNote note;
  std::memset(static_cast<void*>(&note), 0xFE, sizeof note);  // an even version, no end of the text
  const std::string text = note.describe();
  EXPECT_TRUE(contains(text, std::string(LeaseNote::kHolderBytes, '?') + " for")) << text;
  EXPECT_LT(text.size(), 300u);
}

TEST(LeaseNote, IsNeverReadHalfWritten) {
  LeaseNote note;
  std::jthread writer([&](const std::stop_token& stop) {
    const std::string holders[] = {std::string(90, 'a' + 2), std::string(90, 'a' + 3)};
    for (std::size_t i = 0; !stop.stop_requested(); ++i) {
      note.write(2 + i % 2, holders[i % 2], {});
      // Else it is hardly ever whole.
      const auto next = Clock::now() + std::chrono::nanoseconds(300);
      while (Clock::now() < next) {
      }
    }
  });
  // Until both have really run at the same time, which a busy machine may not let them for long.
  int changes = 0;
  char last = '?';
  const auto deadline = Clock::now() + std::chrono::seconds(3);
  while (changes < 20'000 && Clock::now() < deadline) {
    const std::string text = note.describe();
    if (text.empty() || contains(text, "never finished")) continue;
    const char leases = text[0];
    ASSERT_TRUE(leases == '2' || leases == '3') << text;
    ASSERT_TRUE(contains(
        text, "held by " + std::string(90, static_cast<char>('a' + leases - '0')) + " for "))
        << text;
    changes += leases != last ? 1 : 0;
    last = leases;
  }
  EXPECT_GT(changes, 0);
}

}  // namespace
}  // namespace moetap
