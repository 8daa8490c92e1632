#include "ipc/table/slot_buffer.h"

#include <moetap/error.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/stored.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::message_of;

using test::Stored;

constexpr std::int64_t kSlots = 200;
constexpr std::int64_t kMaxRows = 50;
constexpr Step kMaxStep = Step::max();
constexpr std::byte kNoRow{0xFF};

// Memory that a forked child shares.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : bytes_{static_cast<std::byte*>(
                   mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
               bytes} {}
  ~Memory() { munmap(bytes_.data(), bytes_.size()); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

struct Read {
  std::vector<std::byte> rows;
  std::vector<RowState> states;
};

class SlotBufferTest : public testing::TestWithParam<std::size_t> {
 protected:
  const std::size_t row_bytes = GetParam();
  Memory memory{SlotBuffer::bytes(kSlots, row_bytes)};
  SlotBuffer buffer{memory.bytes(), kSlots, row_bytes, kMaxRows};
  std::mt19937_64 random{7};

  std::vector<std::byte> random_rows(std::size_t count) {
    std::vector<std::byte> rows(count * row_bytes);
    for (std::byte& b : rows) b = static_cast<std::byte>(random());
    return rows;
  }

  Read read(std::span<const Slot> slots, std::span<const StepWindow> windows) const {
    Read result{std::vector<std::byte>(slots.size() * row_bytes),
                std::vector<RowState>(slots.size())};
    buffer.gather(slots, windows, result.rows, result.states);
    return result;
  }
  Read read_all(StepWindow window = {}) const {
    std::vector<Slot> slots(kSlots);
    for (Slot s = 0; s < kSlots; ++s) slots[static_cast<std::size_t>(s.value())] = s;
    return read(slots, {&window, 1});
  }

  std::vector<std::byte> everything() const {
    return {memory.bytes().begin(), memory.bytes().end()};
  }
  template <class Error, class Call>
  std::string expect_unchanged(Call&& call) {
    const auto before = everything();
    std::string message = message_of<Error>(call);
    EXPECT_EQ(everything(), before) << message;
    return message;
  }
};

// Blocks of 16 in random order, cut somewhere, some rows with a missing route.
Stored random_slots(std::mt19937_64& random) {
  std::vector<Slot> blocks(kSlots / 16);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = Slot(i * 16);
  std::ranges::shuffle(blocks, random);
  Stored slots{};
  for (const Slot block : blocks) {
    const auto from = static_cast<int>(random() % 16);
    for (int s = from; s < 16; s += 1 + static_cast<int>(random() % 4 == 0)) {
      slots.push_back(random() % 10 == 0 ? MarkedSlot::missing(block + s) : MarkedSlot(block + s));
    }
  }
  slots.resize(std::min<std::size_t>(slots.size(), random() % kMaxRows));
  return slots;
}

TEST_P(SlotBufferTest, DoesWhatAMapOfRowsDoes) {
  struct Row {
    Step step;
    std::vector<std::byte> bytes;
  };
  std::map<Slot, Row> model;
  for (Step step = 1; step <= 300; ++step) {
    const Stored slots = random_slots(random);
    const std::vector<std::byte> rows = random_rows(slots.size());
    if (step.value() % 7 == 0) {
      buffer.invalidate(slots);
      for (const MarkedSlot slot : slots) model.erase(slot.slot());
      continue;
    }
    buffer.scatter(step, slots, rows);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto at = rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
      model.erase(slots[i].slot());
      if (!slots[i].is_missing()) {
        model[slots[i].slot()] = {step, {at, at + static_cast<std::ptrdiff_t>(row_bytes)}};
      }
    }

    std::vector<Slot> wanted(random() % 100);
    std::vector<StepWindow> windows(random() % 2 == 0 ? 1 : wanted.size());
    for (Slot& slot : wanted) slot = Slot(random() % kSlots);
    if (wanted.size() > 40)
      std::iota(wanted.begin(), wanted.begin() + 40, Slot(wanted[0].value() % 100));
    for (StepWindow& window : windows) {
      window.first = Step(1 + random() % step.value());
      window.last = window.first + static_cast<std::int64_t>(random() % step.value());
    }
    const Read got = read(wanted, windows);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto found = model.find(wanted[i]);
      const StepWindow window = windows[windows.size() == 1 ? 0 : i];
      const RowState state =
          found == model.end() ? RowState::missing : row_state(found->second.step, window);
      ASSERT_EQ(got.states[i], state) << "step " << step << " slot " << wanted[i];
      const auto expected = state == RowState::present ? found->second.bytes
                                                       : std::vector<std::byte>(row_bytes, kNoRow);
      ASSERT_EQ(std::memcmp(&got.rows[i * row_bytes], expected.data(), row_bytes), 0);
    }
  }
}

TEST_P(SlotBufferTest, ASlotOutsideTheBufferChangesNothing) {
  buffer.scatter(1, Stored{3, 4}, random_rows(2));
  for (const std::int64_t bad : {kSlots, ~kSlots, Slot::max().value(), Slot::min().value()}) {
    const std::string message = expect_unchanged<RangeError>([&] {
      buffer.scatter(2, Stored{4, bad, 5}, random_rows(3));
    });
    EXPECT_TRUE(contains(message, std::to_string(bad < 0 ? ~bad : bad))) << message;
    EXPECT_TRUE(contains(message, std::to_string(kSlots))) << message;
  }
}

TEST_P(SlotBufferTest, ASlotThatComesTwiceChangesNothing) {
  buffer.scatter(1, Stored{3, 4, ~5}, random_rows(3));
  for (const auto& slots : {Stored{3, 4, 5, 4}, Stored{7, 5, 9, ~5}, Stored{~4, 8, 3, 4}}) {
    const std::string message = expect_unchanged<ArgumentError>(
        [&] { buffer.scatter(2, slots, random_rows(slots.size())); });
    EXPECT_TRUE(contains(message, std::to_string(slots.back().slot().value()))) << message;
  }
  EXPECT_EQ(read_all().states[3], RowState::present);
}

TEST_P(SlotBufferTest, H4MoreRowsThanConfiguredChangeNothing) {
  std::vector<Slot> slots(kMaxRows + 1);
  std::iota(slots.begin(), slots.end(), Slot(0));
  const std::string message = expect_unchanged<RangeError>(
      [&] { buffer.scatter(1, unmarked(slots), random_rows(slots.size())); });
  EXPECT_TRUE(contains(message, std::to_string(kMaxRows))) << message;
  EXPECT_TRUE(contains(message, std::to_string(kMaxRows + 1))) << message;
}

TEST_P(SlotBufferTest, SizesThatDoNotFitAndStepsThatCannotBeStampsChangeNothing) {
  const std::vector<Slot> slots{1, 2};
  auto rows = random_rows(2);
  expect_unchanged<ArgumentError>([&] { buffer.scatter(0, unmarked(slots), rows); });
  expect_unchanged<ArgumentError>([&] { buffer.scatter(kMaxStep, unmarked(slots), rows); });
  rows.pop_back();
  expect_unchanged<ArgumentError>([&] { buffer.scatter(1, unmarked(slots), rows); });
}

TEST_P(SlotBufferTest, ABadReadWritesNothing) {
  buffer.scatter(1, Stored{1, 2}, random_rows(2));
  std::vector<std::byte> rows(2 * row_bytes, std::byte{42});
  std::vector<RowState> states(2, RowState::stale);
  const std::vector<StepWindow> one(1), two(2), three(3);
  const auto bad = [&]<class Error>(const std::vector<Slot>& slots, std::span<const StepWindow> w,
                                    std::span<std::byte> r, std::span<RowState> s, Error*) {
    message_of<Error>([&] { buffer.gather(slots, w, r, s); });
  };
  RangeError* range = nullptr;
  ArgumentError* argument = nullptr;
  bad({1, Slot(kSlots)}, one, rows, states, range);
  bad({1, -1}, two, rows, states, range);
  bad({1, 2}, three, rows, states, argument);
  bad({1, 2}, {}, rows, states, argument);
  bad({1, 2}, one, std::span(rows).first(rows.size() - 1), states, argument);
  bad({1, 2}, one, rows, std::span(states).first(1), argument);
  EXPECT_EQ(std::ranges::count(rows, std::byte{42}), std::ssize(rows));
  EXPECT_EQ(std::ranges::count(states, RowState::stale), 2);
}

TEST_P(SlotBufferTest, InvalidatesThoseSlotsThatExist) {
  buffer.scatter(1, Stored{0, 1, 2, 3}, random_rows(4));
  buffer.invalidate(Stored{1, ~2, kSlots, Slot::min().value()});
  const auto states = read_all().states;
  EXPECT_EQ(states[0], RowState::present);
  EXPECT_EQ(states[1], RowState::missing);
  EXPECT_EQ(states[2], RowState::missing);
  EXPECT_EQ(states[3], RowState::present);
}

// The rows that the writer reads end at a page that it may not read, so it dies there by itself.
TEST_P(SlotBufferTest, AWriterThatDiesInTheMiddleLeavesMissingRowsNotTornOnes) {
  constexpr std::size_t kRows = 20;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t readable = (kRows * row_bytes / page + 1) * page;
  Memory source(2 * readable);
  std::ranges::fill(source.bytes(), std::byte{2});
  const std::span<std::byte> rows =
      source.bytes().subspan(readable - (kRows - 1) * row_bytes, kRows * row_bytes);
  std::vector<Slot> slots(kRows);
  for (std::size_t i = 0; i < kRows; ++i) slots[i] = Slot(2 * i);
  buffer.scatter(1, unmarked(slots), std::vector<std::byte>(kRows * row_bytes, std::byte{1}));

  ChildProcess writer([&] {
    signal(SIGSEGV, SIG_DFL);
    mprotect(source.bytes().data() + readable, readable, PROT_NONE);
    buffer.scatter(2, unmarked(slots), rows);
  });
  const int status = writer.join();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  // It had begun: the first row has new bytes.
  const std::size_t first_row = memory.bytes().size() - kSlots * row_bytes;
  ASSERT_EQ(memory.bytes()[first_row], std::byte{2});
  for (const StepWindow window : {StepWindow{}, StepWindow{1, 1}, StepWindow{2, 2}}) {
    const Read got = read_all(window);
    for (const Slot slot : slots) {
      EXPECT_EQ(got.states[static_cast<std::size_t>(slot.value())], RowState::missing) << slot;
    }
  }
}

// The same for rows that are put, which replace those of earlier steps one by one: a process that
// dies between the halves of a row leaves neither the old one nor a mixture.
TEST(SlotBuffer, APutThatDiesInARowLeavesThatRowMissing) {
  constexpr std::size_t kRowBytes = 384;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const Memory memory(SlotBuffer::bytes(kSlots, kRowBytes));
  SlotBuffer buffer(memory.bytes(), kSlots, kRowBytes, kMaxRows);
  const std::vector<Slot> slots{5, 7};
  buffer.scatter(1, unmarked(slots), std::vector<std::byte>(2 * kRowBytes, std::byte{1}));
  const Memory source(2 * page);  // the second row ends where nothing can be read
  ChildProcess reader([&] {
    signal(SIGSEGV, SIG_DFL);
    mprotect(source.bytes().data() + page, page, PROT_NONE);
    buffer.put_in(2, slots, source.bytes().subspan(page - 3 * kRowBytes / 2, 2 * kRowBytes), {});
  });
  const int status = reader.join();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  std::vector<Step> steps(2);
  buffer.stamps(slots, steps);
  EXPECT_EQ(steps, (std::vector<Step>{2, 0}));
}

INSTANTIATE_TEST_SUITE_P(RowBytes, SlotBufferTest, testing::Values(1, 6, 64, 384, 1760));

TEST(SlotBuffer, TakesAtMostTwoPercentMoreThanRowsAndStamps) {
  for (const std::size_t row_bytes : {384u, 464u, 1760u}) {
    const auto least = static_cast<double>(65536 * (row_bytes + 8));
    EXPECT_LE(static_cast<double>(SlotBuffer::bytes(65536, row_bytes)), 1.02 * least);
  }
}

TEST(SlotBuffer, RefusesMemoryThatIsTooSmallOrNotAligned) {
  const Memory memory(SlotBuffer::bytes(kSlots, 6) + 64);
  const auto make = [&](std::size_t offset, std::size_t bytes) {
    SlotBuffer(memory.bytes().subspan(offset, bytes), kSlots, 6, 1);
  };
  make(0, SlotBuffer::bytes(kSlots, 6));
  EXPECT_THROW(make(0, SlotBuffer::bytes(kSlots, 6) - 1), ArgumentError);
  EXPECT_THROW(make(8, SlotBuffer::bytes(kSlots, 6)), ArgumentError);
}

}  // namespace
}  // namespace moetap
