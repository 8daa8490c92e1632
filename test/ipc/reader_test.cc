#include <moetap/error.h>
#include <moetap/reader.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

// Keeps a byte and a step a slot: enough to see whose row was read under which window.
class FakeSlots final : public SlotReadTransport {
 public:
  const ModelShape& shape() const override { return shape_; }
  Step poll() override { return last; }
  void wait_for(Step step, Milliseconds) override {
    if (step > last) throw TimeoutError("step " + std::to_string(step.value()));
  }
  std::int64_t num_slots() const override { return static_cast<std::int64_t>(stamps.size()); }
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override {
    ASSERT_TRUE(windows.size() == 1 || windows.size() == slots.size());
    ASSERT_EQ(rows.size(), slots.size() * shape_.row_bytes());
    ASSERT_EQ(states.size(), slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      states[i] = row_state(stamps[static_cast<std::size_t>(slots[i].value())],
                            windows[windows.size() == 1 ? 0 : i]);
      if (states[i] == RowState::present) rows[i] = static_cast<std::byte>(slots[i].value());
    }
  }
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte>,
           std::span<const RowState>) override {
    for (const Slot slot : slots) stamps[static_cast<std::size_t>(slot.value())] = step;
  }

  std::vector<Step> stamps = std::vector<Step>(40, 5);
  Step last = 9;

 private:
  ModelShape shape_{{0}, 1, 256};
};

class ReaderTest : public testing::Test {
 protected:
  FakeSlots* transport = new FakeSlots;
  Reader reader{std::unique_ptr<SlotReadTransport>(transport)};
  const std::vector<BlockId> blocks{7, 0, 3};
};

TEST_F(ReaderTest, ReadsARangeThroughTheBlockTable) {
  const StepWindow any[] = {{}};
  const Routes routes = reader.read(blocks, 4, {3, 9}, any);
  EXPECT_EQ(routes.range(), (TokenRange{3, 9}));
  EXPECT_TRUE(routes.all_present());
  const std::uint32_t slots[] = {31, 0, 1, 2, 3, 12};
  for (std::int64_t p = 3; p < 9; ++p) EXPECT_EQ(routes.id(p, 0, 0), slots[p - 3]);
}

TEST_F(ReaderTest, EachBlockHasItsOwnWindow) {  // H9, H11
  const StepWindow windows[] = {{1, 4}, {5, 5}, {6, 9}};
  const Routes routes = reader.read(blocks, 4, {2, 11}, windows);
  for (std::int64_t p = 2; p < 11; ++p) {
    EXPECT_EQ(routes.state(p), p < 4   ? RowState::clobbered
                               : p < 8 ? RowState::present
                                       : RowState::stale);
  }
}

TEST_F(ReaderTest, RowsNotWrittenAreMissing) {
  transport->stamps[1] = 0;
  const StepWindow any[] = {{}};
  const Routes routes = reader.read(blocks, 4, {4, 8}, any);
  EXPECT_EQ(routes.state(5), RowState::missing);
  EXPECT_EQ(routes.count(RowState::present), 3u);
  expect_throw<RowsNotPresent>([&] { routes.require_present(); }, {"1 missing (positions 5)"});
}

TEST_F(ReaderTest, EmptyRangeReadsNothing) {
  const StepWindow any[] = {{}};
  EXPECT_TRUE(reader.read(blocks, 4, {5, 5}, any).states().empty());
  EXPECT_TRUE(reader.read({}, 4, {0, 0}, {}).states().empty());
}

TEST_F(ReaderTest, RefusesWindowsThatDoNotMatchTheBlocks) {
  const std::vector<StepWindow> windows(2);
  expect_throw<ArgumentError>(
      [&] {
        reader.read(blocks, 4, {0, 8}, windows);
      },
      {"2 step windows", "3 blocks"});
  expect_throw<ArgumentError>([&] { reader.read(blocks, 4, {0, 8}, {}); }, {"0 step windows"});
}

TEST_F(ReaderTest, RefusesARangeOutsideTheBlocks) {  // H16
  const StepWindow any[] = {{}};
  expect_throw<RangeError>([&] { reader.read(blocks, 4, {0, 13}, any); }, {"[0, 13)", "[0, 12)"});
}

TEST_F(ReaderTest, PassesStepsThrough) {
  EXPECT_EQ(reader.poll(), Step(9));
  EXPECT_EQ(reader.num_slots(), 40);
  reader.wait_for(9, Milliseconds(0));
  expect_throw<TimeoutError>([&] { reader.wait_for(10, Milliseconds(0)); }, {"10"});
}

TEST(Readers, NeedATransport) {
  expect_throw<ArgumentError>([] { Reader(nullptr); }, {"null"});
  expect_throw<ArgumentError>([] { RequestReader(nullptr); }, {"null"});
}

TEST(ReaderSingleton, LivesFromCreateToDestroy) {
  Reader::destroy();
  expect_throw<StateError>([] { Reader::instance(); }, {"Reader", "create()"});
  Reader& reader = Reader::create(std::make_unique<FakeSlots>());
  EXPECT_EQ(&Reader::instance(), &reader);
  expect_throw<StateError>([] { Reader::create(std::make_unique<FakeSlots>()); },
                           {"Reader", "destroy()"});
  EXPECT_EQ(&Reader::instance(), &reader);
  Reader::destroy();
  expect_throw<StateError>([] { Reader::instance(); }, {"create()"});
  EXPECT_NO_THROW(Reader::create(std::make_unique<FakeSlots>()));
  Reader::destroy();
}

class FakeRequests final : public RequestReadTransport {
 public:
  const ModelShape& shape() const override { return shape_; }
  Step poll() override { return 3; }
  void wait_for(Step, Milliseconds) override {}
  void take(RequestId request, TokenRange range, std::span<std::byte> rows,
            std::span<RowState> states, Milliseconds) override {
    if (request != 42) throw TimeoutError("request " + std::to_string(request.value()));
    ASSERT_EQ(static_cast<std::int64_t>(states.size()), range.size());
    ASSERT_EQ(rows.size(), states.size());
    for (std::size_t i = 1; i < states.size(); ++i) {  // the first is a prefix hit
      states[i] = RowState::present;
      rows[i] = static_cast<std::byte>(range.start + static_cast<std::int64_t>(i));
    }
  }

 private:
  ModelShape shape_{{0}, 1, 256};
};

TEST(RequestRoutesTest, TakesAWholeRequest) {
  RequestReader reader(std::make_unique<FakeRequests>());
  const Routes routes = reader.take(42, {4, 9}, Milliseconds(0));
  EXPECT_EQ(routes.range(), (TokenRange{4, 9}));
  EXPECT_EQ(routes.state(4), RowState::missing);
  for (std::int64_t p = 5; p < 9; ++p) EXPECT_EQ(routes.id(p, 0, 0), p);
  expect_throw<TimeoutError>([&] { reader.take(43, {4, 9}, Milliseconds(0)); }, {"43"});
}

}  // namespace
}  // namespace moetap
