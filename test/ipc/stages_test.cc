#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>
#include <moetap/reader.h>
#include <moetap/row_plan.h>
#include <moetap/stages.h>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "test/lib/slot_memory.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::SlotMemory;

constexpr std::int64_t kSlots = 32;
constexpr Milliseconds kNow{0};

const ModelShape kModel = ModelShape::uniform(4, 2, 256);

// Two stages of four uint8 ids each, whose layers are not neighbours.
class StagesTest : public testing::Test {
 protected:
  StagesTest() {
    std::vector<std::unique_ptr<SlotReadTransport>> stages;
    for (std::size_t i = 0; i < 2; ++i) {
      auto stage = std::make_unique<SlotMemory>(kSlots, ModelShape(kLayers[i], 2, 256));
      memory[i] = stage.get();
      stages.push_back(std::move(stage));
    }
    joined = join_stages(kModel, std::move(stages));
  }

  // Every id of a row is the step's, the slot's, or the layer's, in turns.
  static std::uint32_t stage_row(std::size_t stage, Step step, Slot slot) {
    std::array<std::uint8_t, 4> ids{};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const int layer = kLayers[stage][i / 2];
      ids[i] = static_cast<std::uint8_t>(
          step.value() * 50 + static_cast<std::uint64_t>(slot.value() * 10) + layer * 2 + i % 2);
    }
    std::uint32_t row;
    std::memcpy(&row, ids.data(), sizeof row);
    return row;
  }
  static std::vector<std::byte> row(Step step, Slot slot) {
    std::vector<std::byte> ids;
    ids.reserve(8);
    for (int i = 0; i < 8; ++i) {
      ids.push_back(std::byte(static_cast<std::uint8_t>(
          step.value() * 50 + static_cast<std::uint64_t>(slot.value() * 10) + i)));
    }
    return ids;
  }

  void publish(std::size_t stage, Step step, const std::vector<Slot>& slots) {
    std::vector<std::pair<Slot, std::uint32_t>> rows;
    rows.reserve(slots.size());
    for (const Slot slot : slots) rows.emplace_back(slot, stage_row(stage, step, slot));
    memory[stage]->publish(step, rows);
  }
  void publish(Step step, const std::vector<Slot>& slots) {
    publish(0, step, slots);
    publish(1, step, slots);
  }

  RowState read(Slot slot, StepWindow window) {
    bytes.assign(8, std::byte{0});
    RowState state{};
    joined->read({&slot, 1}, {&window, 1}, bytes, {&state, 1});
    if (state != RowState::present && state != RowState::unverified) {
      EXPECT_EQ(bytes, std::vector<std::byte>(8, std::byte{0xFF}));
    }
    return state;
  }

  static inline const std::vector<int> kLayers[2] = {{0, 3}, {1, 2}};
  SlotMemory* memory[2];
  std::unique_ptr<SlotReadTransport> joined;
  std::vector<std::byte> bytes;
};

TEST_F(StagesTest, RowsAreJoinedInTheOrderOfTheirLayers) {
  publish(1, {4, 9});
  for (const Slot slot : {Slot(4), Slot(9)}) {
    EXPECT_EQ(read(slot, {1, 1}), RowState::present);
    EXPECT_EQ(bytes, row(1, slot));
  }
  EXPECT_EQ(joined->shape(), kModel);
  EXPECT_EQ(joined->num_slots(), kSlots);
}

TEST_F(StagesTest, ARowIsPresentOnlyWhereEveryStageHasIt) {
  publish(0, 1, {4});
  EXPECT_EQ(read(4, {1, 1}), RowState::missing);
  publish(1, 1, {4});
  EXPECT_EQ(read(4, {1, 1}), RowState::present);
  memory[1]->fail(2, {4});
  EXPECT_EQ(read(4, {1, 1}), RowState::missing);
}

TEST_F(StagesTest, TheWorstThatAStageKnowsIsTheRowsState) {
  publish(1, {4});
  publish(0, 3, {4});
  EXPECT_EQ(read(4, {1, 1}), RowState::clobbered);
  EXPECT_EQ(read(4, {3, 3}), RowState::stale);
  EXPECT_EQ(read(4, {2, 2}), RowState::clobbered);
}

TEST_F(StagesTest, PartsOfDifferentStepsAreNoRow) {
  publish(1, {4, 5});
  publish(0, 2, {4});  // the other stage is not there yet
  EXPECT_EQ(read(4, {}), RowState::missing);
  EXPECT_EQ(read(5, {}), RowState::present);
  EXPECT_EQ(bytes, row(1, 5));
  publish(1, 2, {4});
  EXPECT_EQ(read(4, {}), RowState::present);
  EXPECT_EQ(bytes, row(2, 4));
  publish(1, 3, {4});
  EXPECT_EQ(read(4, {}), RowState::missing);
}

TEST_F(StagesTest, AWindowOfSeveralStepsFindsTheOneThatAllStagesHave) {
  publish(1, {4});
  publish(2, {5});
  publish(3, {6});
  joined->wait_for(3, kNow);
  EXPECT_EQ(read(4, {1, 3}), RowState::present);
  EXPECT_EQ(bytes, row(1, 4));
  EXPECT_EQ(read(5, {1, 3}), RowState::present);
  EXPECT_EQ(read(4, {2, 3}), RowState::stale);
  EXPECT_EQ(read(6, {1, 2}), RowState::clobbered);
  EXPECT_EQ(read(7, {1, 3}), RowState::missing);

  const std::vector<Slot> slots{4, 5, 6, 7};
  const std::vector<StepWindow> windows{{1, 3}, {2, 2}, {2, 3}, {1, 3}};
  std::vector<std::byte> rows(32);
  std::vector<RowState> states(4);
  joined->read(slots, windows, rows, states);
  EXPECT_EQ(states, (std::vector{RowState::present, RowState::present, RowState::present,
                                 RowState::missing}));
}

TEST_F(StagesTest, AWindowMustNotEndAheadOfTheLastStage) {
  publish(0, 1, {4});
  publish(0, 2, {5});
  publish(1, 1, {4});
  EXPECT_EQ(joined->poll(), Step(1U));
  expect_throw<StateError>([&] { read(4, {1, 2}); }, {"step 2", "is 1", "wait_for(2)"});
  EXPECT_EQ(read(4, {1, 1}), RowState::present);
  publish(1, 2, {5});
  EXPECT_EQ(joined->poll(), Step(2U));
  EXPECT_EQ(read(4, {1, 2}), RowState::present);
}

TEST_F(StagesTest, StagesWithoutStampsClaimNothing) {
  publish(1, {4});
  memory[0]->unstamped = memory[1]->unstamped = true;
  EXPECT_EQ(read(4, {}), RowState::unverified);
  EXPECT_EQ(bytes, row(1, 4));
  // One that claims rows but cannot say of which step.
  memory[1]->unstamped = false;
  EXPECT_EQ(read(4, {}), RowState::unverified);
}

TEST_F(StagesTest, WhoCannotSayOfWhichStepARowIsJoinsRowsOfOneStepOnly) {
  publish(1, {4});
  memory[0]->keeps_stamps_to_itself = true;
  EXPECT_EQ(read(4, {}), RowState::missing);
  EXPECT_EQ(read(4, {1, 1}), RowState::present);
}

TEST_F(StagesTest, WaitingIsForAllStages) {
  publish(0, 1, {4});
  expect_throw<TimeoutError>([&] { joined->wait_for(1, Milliseconds(7)); },
                             {"ms for step 1 of all 2 ranks", "stage of layers 1, 2", "step 1"});
  publish(1, 1, {4});
  EXPECT_NO_THROW(joined->wait_for(1, kNow));
}

TEST_F(StagesTest, AFailureIsKnownOnceEveryStageIsThere) {
  memory[0]->fail(1, {4});
  expect_throw<TimeoutError>([&] { joined->wait_for(1, kNow); }, {"layers 1, 2"});
  publish(1, 1, {4});
  expect_throw<StepFailed>([&] { joined->wait_for(1, kNow); },
                           {"step 1", "layers 0, 3", "not captured"});
  EXPECT_EQ(read(4, {1, 1}), RowState::missing);
}

TEST_F(StagesTest, APutGoesToEveryStage) {
  publish(1, {4, 5});
  const std::vector<Slot> to{20, 5};
  const std::vector<RowState> states{RowState::present, RowState::missing};
  std::vector<std::byte> rows = row(1, 4);
  const std::vector<std::byte> other = row(1, 5);
  rows.insert(rows.end(), other.begin(), other.end());
  joined->put(2, to, rows, states);
  EXPECT_EQ(read(20, {2, 2}), RowState::present);
  EXPECT_EQ(bytes, row(1, 4));
  EXPECT_EQ(read(5, {1, 1}), RowState::missing);
  expect_throw<ArgumentError>([&] { joined->put(3, to, std::span(rows).first(8), states); },
                              {"16"});
}

TEST_F(StagesTest, SizesThatDoNotFitChangeNothing) {
  publish(1, {4});
  const std::vector<Slot> slots{4, 5};
  const std::vector<StepWindow> windows(3);
  std::vector<std::byte> rows(16, std::byte{7});
  std::vector<RowState> states(2);
  const auto read_into = [&](std::size_t w, std::size_t r, std::size_t s) {
    joined->read(slots, std::span(windows).first(w), std::span(rows).first(r),
                 std::span(states).first(s));
  };
  EXPECT_THROW(read_into(3, 16, 2), ArgumentError);
  EXPECT_THROW(read_into(1, 15, 2), ArgumentError);
  EXPECT_THROW(read_into(1, 16, 1), ArgumentError);
  EXPECT_EQ(rows, std::vector<std::byte>(16, std::byte{7}));
  EXPECT_NO_THROW(read_into(1, 16, 2));
}

TEST_F(StagesTest, StampsAreThoseThatAllStagesShare) {
  publish(1, {4, 5});
  publish(0, 2, {5});
  const std::vector<Slot> slots{4, 5, 6};
  std::vector<Step> written(3, 9);
  joined->stamps(slots, written);
  EXPECT_EQ(written, (std::vector<Step>{1, 0, 0}));
}

TEST_F(StagesTest, ALedgersPlansWork) {
  Ledger ledger(8, 4);
  const std::vector<BlockId> blocks{2, 3};
  ledger.admit({.request = 7, .num_tokens = 6, .placement = {.blocks = blocks}});
  ledger.schedule(1, 7, {0, 4});
  ledger.schedule(2, 7, {4, 6});
  publish(1, {8, 9, 10, 11});
  publish(2, {12, 13});
  Reader reader(std::move(joined));
  const std::vector<BlockMove> moves{{3, 5}};
  EXPECT_EQ(move_rows(reader, ledger.move(3, moves), kNow), 2U);
  const Routes routes =
      view_rows(reader, ledger.finish(7, 7), "request 7", kNow).detach().require_present();
  ASSERT_EQ(routes.range(), (TokenRange{0, 6}));
  for (std::int64_t i = 0; i < 6; ++i) {
    const auto got = routes.row(i);
    EXPECT_EQ(std::vector(got.begin(), got.end()), row(Step(i < 4 ? 1 : 2), Slot(8 + i))) << i;
  }
}

// Has its step once the other one was asked for it some times more: as two ranks in lockstep whose
// rings have room for one step.
class LockstepStage final : public SlotReadTransport {
 public:
  struct Asked {
    int times[2] = {0, 0};
  };
  LockstepStage(ModelShape shape, int number, Asked& asked, bool alive = true)
      : shape_(std::move(shape)), number_(number), asked_(asked), alive_(alive) {}
  const ModelShape& shape() const override { return shape_; }
  std::int64_t num_slots() const override { return kSlots; }
  bool worker_alive() override { return alive_; }
  Step poll() override {
    ++asked_.times[number_];
    return Step(asked_.times[1 - number_] >= 3 ? 1 : 0);
  }
  void wait_for(Step, Milliseconds timeout) override {
    if (asked_.times[1 - number_] < 3) throw TimeoutError(alive_ ? "late" : "dead");
    EXPECT_EQ(timeout, kNow) << "it is there";
  }
  void read(std::span<const Slot>, std::span<const StepWindow>, std::span<std::byte>,
            std::span<RowState>) override {}
  void put(Step, std::span<const Slot>, std::span<const std::byte>,
           std::span<const RowState>) override {}

 private:
  ModelShape shape_;
  int number_;
  Asked& asked_;
  bool alive_;
};

std::unique_ptr<SlotReadTransport> join_two(LockstepStage::Asked& asked, bool second_lives) {
  std::vector<std::unique_ptr<SlotReadTransport>> stages;
  stages.push_back(std::make_unique<LockstepStage>(ModelShape({0}, 2, 256), 0, asked));
  stages.push_back(
      std::make_unique<LockstepStage>(ModelShape({1}, 2, 256), 1, asked, second_lives));
  return join_stages(ModelShape::uniform(2, 2, 256), std::move(stages));
}

TEST(Stages, H35AreAllAskedInTurnWhileOneIsWaitedFor) {
  LockstepStage::Asked asked;
  const auto joined = join_two(asked, true);
  EXPECT_THROW(joined->wait_for(1, kNow), TimeoutError);
  joined->wait_for(1, Milliseconds(60'000));
  EXPECT_GE(asked.times[0], 3);
  EXPECT_GE(asked.times[1], 3);
}

TEST(Stages, H35ADeadWorkerIsNotWaitedFor) {
  LockstepStage::Asked asked;
  asked.times[1] = 3;  // the first has its step
  const auto joined = join_two(asked, false);
  expect_throw<TimeoutError>([&] { joined->wait_for(1, std::chrono::hours(1)); },
                             {"layer", "1: dead"});
  EXPECT_FALSE(joined->worker_alive());
}

// The first stage's worker is alive and waits for the second's, as ranks in lockstep do.
TEST(Stages, H35ADeadWorkerIsFoundAlsoAfterOneThatWaitsForIt) {
  LockstepStage::Asked asked;
  asked.times[0] = asked.times[1] = -1'000'000'000;  // neither comes to its step
  const auto joined = join_two(asked, false);
  expect_throw<TimeoutError>([&] { joined->wait_for(1, Milliseconds(5'000)); },
                             {"layer", "1: dead"});
}

std::vector<std::unique_ptr<SlotReadTransport>> stages_of(std::vector<ModelShape> shapes) {
  std::vector<std::unique_ptr<SlotReadTransport>> stages;
  for (ModelShape& shape : shapes) {
    static LockstepStage::Asked unused;
    stages.push_back(std::make_unique<LockstepStage>(std::move(shape), 0, unused));
  }
  return stages;
}

TEST(Stages, MustHaveEachLayerOnce) {
  const auto join = [](std::vector<ModelShape> shapes) {
    (void)join_stages(kModel, stages_of(std::move(shapes)));
  };
  EXPECT_NO_THROW(join({ModelShape({0, 1}, 2, 256), ModelShape({2, 3}, 2, 256)}));
  EXPECT_NO_THROW(join({ModelShape({2, 3}, 2, 256), ModelShape({0, 1}, 2, 256)}));
  expect_throw<ArgumentError>(
      [&] {
        join({ModelShape({0, 1}, 2, 256), ModelShape({3}, 2, 256)});
      },
      {"0, 1, 3", "0-3"});
  expect_throw<ArgumentError>(
      [&] {
        join({ModelShape({0, 1}, 2, 256), ModelShape({1, 2, 3}, 2, 256)});
      },
      {"0, 1, 1, 2, 3"});
  EXPECT_THROW(join({ModelShape({0, 1}, 2, 256), ModelShape({2, 3, 4}, 2, 256)}), RangeError);
  expect_throw<ArgumentError>(
      [&] {
        join({ModelShape({0, 1}, 2, 256), ModelShape({2, 3}, 4, 256)});
      },
      {"top-4", "top-2"});
  expect_throw<ArgumentError>(
      [&] {
        join({ModelShape({0, 1}, 2, 256), ModelShape({2, 3}, 2, 128)});
      },
      {"of 128", "of 256"});
  expect_throw<ArgumentError>([&] { join({}); }, {"no stages"});
}

TEST(Stages, MustHaveTheSameSlots) {
  std::vector<std::unique_ptr<SlotReadTransport>> stages;
  stages.push_back(std::make_unique<SlotMemory>(8, ModelShape({0, 1}, 2, 256)));
  stages.push_back(std::make_unique<SlotMemory>(9, ModelShape({2, 3}, 2, 256)));
  expect_throw<ArgumentError>([&] { (void)join_stages(kModel, std::move(stages)); },
                              {"layers 2, 3", "9 slots", "has 8"});
  stages.clear();
  stages.push_back(nullptr);
  expect_throw<ArgumentError>([&] { (void)join_stages(kModel, std::move(stages)); }, {"null"});
}

}  // namespace
}  // namespace moetap
