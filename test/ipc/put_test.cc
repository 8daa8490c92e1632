// Rows that the scheduler puts into a worker's buffer: when blocks move, or come from elsewhere
// (H8).
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/internal/shm_writer.h"
#include "ipc/table/slot_buffer.h"
#include "test/ipc/shm_test.h"
#include "test/ipc/step_records.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::expect_throw;
using test::kPatience;
using test::read;
using test::rows_of;
using test::Signal;
using test::state_of;

using Slots = std::vector<Slot>;

const std::vector<RowState> kMissing{RowState::missing};
const std::vector<RowState> kSecondMissing{RowState::present, RowState::missing};

enum class Way { shm, device };

// The worker's end of either transport, with rows as rows_of() makes them.
class Worker {
 public:
  Worker(Way way, const Endpoint& endpoint) : endpoint_(endpoint) {
    if (way == Way::shm) {
      shm_ = std::make_unique<ShmWriter>(endpoint);
    } else {
      ring_ = std::make_unique<ChannelProducer>(endpoint);
    }
  }

  void publish(Step step, const test::Stored& slots) {
    const auto rows = rows_of(endpoint_.shape, step, slots);
    if (shm_) return shm_->publish(step, slots, rows);
    StepRecordView record = test::write_record(ring_->acquire(), endpoint_.shape, step, slots);
    std::ranges::copy(rows, record.rows.begin());
    ring_->commit(test::describe(Descriptor::Kind::step, step, slots.size()));
  }

 private:
  Endpoint endpoint_;
  std::unique_ptr<ShmWriter> shm_;
  std::unique_ptr<ChannelProducer> ring_;
};

class PutTest : public test::ShmTest, public testing::WithParamInterface<Way> {
 protected:
  std::unique_ptr<SlotReadTransport> make_reader() const {
    return GetParam() == Way::shm ? make_shm_reader(endpoint) : make_device_reader(endpoint);
  }
  void expect_rows(SlotReadTransport& reader, const Slots& at, StepWindow window, Step step,
                   const Slots& of) const {
    const auto got = read(reader, at, window);
    for (const RowState state : got.states) EXPECT_EQ(state, RowState::present);
    EXPECT_EQ(got.rows, rows_of(endpoint.shape, step, of));
  }
};

TEST_P(PutTest, RowsAreOfTheStepThatTheyArePutUnder) {
  Worker worker(GetParam(), endpoint);
  worker.publish(1, {10, 11});
  const auto reader = make_reader();
  reader->wait_for(1, kPatience);
  const Slots slots{12, 11, 10, 40};
  const std::vector<RowState> states{RowState::present, RowState::present, RowState::missing,
                                     RowState::unverified};
  reader->put(2, slots, rows_of(endpoint.shape, 77, slots), states);
  expect_rows(*reader, {12, 11, 40}, {2, 2}, 77, {12, 11, 40});
  EXPECT_EQ(state_of(*reader, 11, {1, 1}), RowState::clobbered);
  EXPECT_EQ(state_of(*reader, 10), RowState::missing);
  EXPECT_EQ(reader->poll(), Step(1));
}

// A plan has the step of each row as its window, whether it has come or, as a put's, never will.
TEST_P(PutTest, AWindowOfOneStepMayBeAheadOfTheLast) {  // H17
  Worker worker(GetParam(), endpoint);
  worker.publish(1, {10});
  const auto reader = make_reader();
  reader->wait_for(1, kPatience);
  EXPECT_EQ(state_of(*reader, 10, {2, 2}), RowState::stale);
  reader->put(3, Slots{10}, rows_of(endpoint.shape, 9, Slots{10}), {});
  EXPECT_EQ(state_of(*reader, 10, {3, 3}), RowState::present);
  expect_throw<StateError>([&] { state_of(*reader, 10, {2, 3}); }, {"up to step 3"});
}

TEST_P(PutTest, RowsOfLaterStepsStay) {
  Worker worker(GetParam(), endpoint);
  worker.publish(5, {10});
  const auto reader = make_reader();
  reader->wait_for(5, kPatience);
  const Slots slots{10, 11};
  reader->put(4, slots, rows_of(endpoint.shape, 77, slots), {});
  expect_rows(*reader, {10}, {5, 5}, 5, {10});
  expect_rows(*reader, {11}, {4, 4}, 77, {11});
  const Slots none{10};
  reader->put(4, none, rows_of(endpoint.shape, 77, none), kMissing);
  expect_rows(*reader, {10}, {5, 5}, 5, {10});
}

TEST_P(PutTest, TheWorkerGoesOnAfterwards) {
  Worker worker(GetParam(), endpoint);
  const auto reader = make_reader();
  reader->put(1, Slots{7}, rows_of(endpoint.shape, 1, Slots{7}), {});
  worker.publish(2, {7, 8});
  reader->wait_for(2, kPatience);
  expect_rows(*reader, {7, 8}, {2, 2}, 2, {7, 8});
}

TEST_P(PutTest, RefusesWhatItCannotPutAndChangesNothing) {
  Worker worker(GetParam(), endpoint);
  worker.publish(1, {1, 2});
  const auto reader = make_reader();
  reader->wait_for(1, kPatience);
  const auto rows = [&](const Slots& slots) { return rows_of(endpoint.shape, 77, slots); };
  const auto put = [&](Step step, const Slots& slots) {
    reader->put(step, slots, rows(slots), {});
  };
  expect_throw<RangeError>([&] { put(2, {1, 64}); }, {"slot 64", "64 slots"});
  expect_throw<RangeError>([&] { put(2, {1, -1}); }, {"slot -1"});
  expect_throw<ArgumentError>([&] { put(2, {1, 2, 1}); }, {"slot 1", "twice"});
  expect_throw<ArgumentError>(
      [&] {
        reader->put(2, Slots{1, 2, 3}, rows({1, 2, 3}), kMissing);
      },
      {"1 states of 3 rows"});
  expect_throw<ArgumentError>([&] { put(0, {1}); }, {"0 is no step"});
  expect_throw<ArgumentError>([&] { put(Step::max(), {1}); }, {"no step"});
  expect_throw<ArgumentError>([&] { reader->put(2, Slots{1, 2}, rows({1}), {}); }, {"2 slots"});
  expect_rows(*reader, {1, 2}, {1, 1}, 1, {1, 2});
}

// Equal rows are equal in all bytes.
TEST_P(PutTest, BytesBetweenIdsAndWeightsAreRefusedAndChangeNothing) {
  endpoint.shape = ModelShape::uniform(3, 2, 16).with_weights(WeightType::float32);
  Worker worker(GetParam(), endpoint);
  worker.publish(1, {1, 2});
  Reader reader(make_reader());
  reader.wait_for(1, kPatience);
  const FillPlan plan{.step = 2, .slots = {1, 2}};
  std::vector<std::byte> rows(2 * endpoint.shape.row_bytes());
  for (std::size_t at = endpoint.shape.ids_bytes(); at < endpoint.shape.weights_offset(); ++at) {
    std::ranges::fill(rows, std::byte{0});
    for (std::size_t i = 0; i < 12; ++i) {  // distinct picks
      rows[i / 6 * endpoint.shape.row_bytes() + i % 6] = static_cast<std::byte>(i % 2);
    }
    rows[endpoint.shape.row_bytes() + at] = std::byte{1};
    expect_throw<ArgumentError>([&] { reader.put(2, plan.slots, rows); },
                                {"slot 2", "2 bytes", "weights_offset(), 8"});
    expect_throw<ArgumentError>([&] { fill_rows(reader, plan, rows, kPatience); }, {"slot 2"});
    std::vector<RowState> states(2);
    std::vector<std::byte> got(rows.size());
    const StepWindow first{1, 1};
    reader.read(plan.slots, {&first, 1}, got, states);
    EXPECT_EQ(states, std::vector(2, RowState::present));
  }
  EXPECT_NO_THROW(reader.put(2, Slots{1, 2}, rows, kSecondMissing));
}

TEST_P(PutTest, H20AnIdOfNoExpertIsRefusedAndChangesNothing) {
  for (const int num_experts : {16, 300}) {  // uint8, uint16
    for (const WeightType weights : {WeightType::none, WeightType::float32}) {
      endpoint.instance += "x";
      endpoint.shape = ModelShape::uniform(3, 2, num_experts).with_weights(weights);
      Worker worker(GetParam(), endpoint);
      worker.publish(1, {1, 2});
      Reader reader(make_reader());
      reader.wait_for(1, kPatience);
      const std::size_t width = id_bytes(endpoint.shape.id_type());
      std::vector<std::byte> rows(2 * endpoint.shape.row_bytes());
      std::ranges::fill(
          std::span(rows).last(endpoint.shape.row_bytes() - endpoint.shape.weights_offset()),
          std::byte{0xFF});  // are no ids
      const auto id = [&](std::size_t row, std::size_t index, int value) {
        std::memcpy(&rows[row * endpoint.shape.row_bytes() + index * width], &value, width);
      };
      for (std::size_t i = 0; i < 12; ++i) id(i / 6, i % 6, static_cast<int>(i % 2));
      id(1, 5, num_experts);  // the last one
      const FillPlan plan{.step = 2, .slots = {1, 2}};
      expect_throw<RangeError>([&] { reader.put(2, plan.slots, rows); },
                               {"slot 2", "layer 2", "expert id " + std::to_string(num_experts)});
      expect_throw<RangeError>([&] { fill_rows(reader, plan, rows, kPatience); },
                               {"slot 2", "layer 2"});
      const auto states_of_step_1 = [&] {
        const StepWindow first{1, 1};
        std::vector<RowState> states(2);
        std::vector<std::byte> got(rows.size());
        reader.read(plan.slots, {&first, 1}, got, states);
        return states;
      };
      EXPECT_EQ(states_of_step_1(), std::vector(2, RowState::present));
      reader.put(2, Slots{1, 2}, rows, kSecondMissing);  // a missing row has no ids
      EXPECT_EQ(states_of_step_1(), (std::vector{RowState::clobbered, RowState::missing}));
      id(1, 5, num_experts - 1);
      reader.put(3, plan.slots, rows);
    }
  }
}

TEST_P(PutTest, H32AnExpertThatIsPickedTwiceIsRefusedAndChangesNothing) {
  for (const int num_experts : {16, 300}) {  // uint8, uint16
    for (const bool declared : {false, true}) {
      endpoint.instance += "x";
      endpoint.shape = ModelShape::uniform(3, 2, num_experts).with_repeated_experts(declared);
      Worker worker(GetParam(), endpoint);
      Reader reader(make_reader());
      const Slots slots{1, 2};
      std::vector<std::byte> rows = rows_of(endpoint.shape, 9, slots);
      const std::size_t width = id_bytes(endpoint.shape.id_type());
      // The last layer's picks of slot 2.
      std::memcpy(&rows[rows.size() - 2 * width], &rows[rows.size() - width], width);
      const FillPlan plan{.step = 2, .slots = {1, 2}};
      if (declared) {
        EXPECT_NO_THROW(fill_rows(reader, plan, rows, kPatience));
        continue;
      }
      expect_throw<ArgumentError>([&] { reader.put(2, slots, rows); },
                                  {"slot 2", "layer 2", "picked twice"});
      expect_throw<ArgumentError>([&] { fill_rows(reader, plan, rows, kPatience); }, {"slot 2"});
      std::vector<RowState> states(2);
      std::vector<std::byte> got(rows.size());
      const StepWindow second{2, 2};
      reader.read(slots, {&second, 1}, got, states);
      EXPECT_EQ(states, std::vector(2, RowState::missing));
      EXPECT_NO_THROW(
          reader.put(2, Slots{1, 2}, rows, kSecondMissing));  // a missing row has no ids
    }
  }
}

// More than the lock is held for at a time.
TEST_P(PutTest, PutsManyRowsAtOnce) {
  endpoint.shape = ModelShape::uniform(300, 8, 1000);  // uint16, 4800 bytes a row
  endpoint.num_slots = 1000;
  Worker worker(GetParam(), endpoint);
  const auto reader = make_reader();
  Slots slots;
  for (int slot = 999; slot >= 0; --slot) slots.emplace_back(slot);
  reader->put(3, slots, rows_of(endpoint.shape, 9, slots), {});
  expect_rows(*reader, slots, {3, 3}, 9, slots);
}

// The whole story: a worker in another process, and a scheduler whose ledger says what to do.
TEST_P(PutTest, ALedgersRequestsReadTheirRowsThroughHitsAndMoves) {
  Signal go;
  Signal done;
  ChildProcess process([&] {
    Worker worker(GetParam(), endpoint);
    worker.publish(1, {4, 5, 6, 7, 8, 9});  // request 1: blocks 1 and 2
    worker.publish(2, {10, 12});            // goes on; request 2 hit block 1 and has block 3
    go.wait();
    worker.publish(4, {35, 13});  // request 1's second block has moved to 8
    done.wait();
  });
  Ledger ledger(16, 4);
  Reader reader(make_reader());
  const std::vector<BlockId> one{1, 2};
  const std::vector<BlockId> two{1, 3};
  ledger.admit({.request = 1, .num_tokens = 6, .placement = {one, 0}});
  ledger.schedule(1, 1, {0, 6});
  ledger.admit({.request = 2, .num_tokens = 5, .placement = {two, 4}});
  ledger.schedule(2, 1, {6, 7});
  ledger.schedule(2, 2, {4, 5});
  const std::vector<BlockMove> moves{{2, 8}};
  EXPECT_EQ(move_rows(reader, ledger.move(3, moves), kPatience), 3u);
  go.raise();
  ledger.schedule(4, 1, {7, 8});
  ledger.schedule(4, 2, {5, 6});
  const Routes first = read_rows(reader, ledger.finish(1, 9), kPatience);
  const Routes second = read_rows(reader, ledger.finish(2, 7), kPatience);
  done.raise();
  EXPECT_EQ(process.join(), 0);

  const auto expected = [&](const std::vector<std::pair<Step, Slots>>& parts) {
    std::vector<std::byte> rows;
    for (const auto& [step, slots] : parts) {
      const auto part = rows_of(endpoint.shape, step, slots);
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  };
  const auto bytes = [](const Routes& routes) {
    routes.require_present();
    return std::vector<std::byte>(routes.bytes().begin(), routes.bytes().end());
  };
  EXPECT_EQ(bytes(first), expected({{1, {4, 5, 6, 7, 8, 9}}, {2, {10}}, {4, {35}}}));
  EXPECT_EQ(bytes(second), expected({{1, {4, 5, 6, 7}}, {2, {12}}, {4, {13}}}));
}

// Of the alternatives B and C for position 3, C stands: it was computed in slot 6 and its keys and
// values moved to slot 5, where B's row lies, of the same step.
TEST_P(PutTest, H30RowsFollowTheTokensOfATreeThatStand) {
  Worker worker(GetParam(), endpoint);
  Ledger ledger(8, 2);
  Reader reader(make_reader());
  const std::vector<BlockId> blocks{1, 2, 3};
  const std::vector<std::int64_t> path{0, 2};
  ledger.admit({.request = 1, .num_tokens = 2, .placement = {blocks, 0}});
  ledger.schedule(1, 1, {0, 2});
  ledger.schedule(2, 1, {2, 5});
  ledger.schedule(3, 1, {5, 6});
  worker.publish(1, {2, 3});
  ledger.accept(1, 1, 3);
  worker.publish(2, {4, 5, 6});
  const MovePlan moved = ledger.accept(2, 1, 5, path, 4);
  ledger.schedule(3, 1, {4, 5});
  const RowPlan before = ledger.rows_since(1, 0);
  EXPECT_EQ(read_rows(reader, before, kPatience).state(3), RowState::stale);
  EXPECT_EQ(move_rows(reader, moved, kPatience), 1u);
  worker.publish(3, {6});
  ledger.accept(3, 1, 6);
  const Routes routes = read_rows(reader, ledger.finish(1, 6), kPatience);
  routes.require_present();
  std::vector<std::byte> expected;
  for (const auto& [step, slot] : {std::pair<Step, Slot>{1, 2}, {1, 3}, {2, 4}, {2, 6}, {3, 6}}) {
    const auto row = rows_of(endpoint.shape, step, Slots{slot});
    expected.insert(expected.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(std::ranges::equal(routes.bytes(), expected));
}

TEST_P(PutTest, H30ARowThatWasOverwrittenBeforeItFollowedIsMissing) {
  Worker worker(GetParam(), endpoint);
  Ledger ledger(8, 2);
  Reader reader(make_reader());
  const std::vector<BlockId> blocks{1, 2, 3};
  ledger.admit({.request = 1, .num_tokens = 3, .placement = {blocks, 0}});
  ledger.schedule(1, 1, {0, 5});
  ledger.schedule(2, 1, {5, 6});
  worker.publish(1, {2, 3, 4, 5, 6});
  worker.publish(2, {6});
  reader.wait_for(2, kPatience);
  const std::vector<std::int64_t> path{0, 1, 2, 4};
  const MovePlan moved = ledger.accept(1, 1, 5, path, 3);
  ledger.schedule(2, 1, {4, 5});
  EXPECT_EQ(move_rows(reader, moved, kPatience), 0u);
  const Routes routes = read_rows(reader, ledger.finish(1, 5), kPatience);
  EXPECT_EQ(routes.count(RowState::present), 3u);
  EXPECT_EQ(routes.state(3), RowState::missing);
}

INSTANTIATE_TEST_SUITE_P(Transports, PutTest, testing::Values(Way::shm, Way::device),
                         [](const auto& info) {
                           return info.param == Way::shm ? "shm" : "device";
                         });

// Else scatter() would take the mark for a slot that comes twice.
TEST(PutIn, ReplacesARowThatADeadWriterLeftHalfWritten) {
  constexpr std::int64_t kSlots = 8;
  alignas(64) std::byte memory[1024 + sizeof(LostSteps)] = {};
  SlotBuffer buffer(memory, kSlots, 4, 8);
  auto* stamps = reinterpret_cast<Step*>(memory);
  stamps[3] = kWriting;  // of a writer that died
  const std::vector<std::byte> rows(4, std::byte{7});
  buffer.put_in(2, Slots{3}, rows, {});
  EXPECT_EQ(stamps[3], Step(2));
  buffer.scatter(3, unmarked(Slots{3}), rows);
  EXPECT_EQ(stamps[3], Step(3));
}

using ShmPutTest = test::ShmTest;

TEST_F(ShmPutTest, OtherReadersOfTheBufferSeeThem) {
  ShmWriter writer(endpoint);
  const auto rows = rows_of(endpoint.shape, 9, Slots{5});
  ChildProcess scheduler([&] { make_shm_reader(endpoint)->put(2, Slots{5}, rows, {}); });
  ASSERT_EQ(scheduler.join(), 0);
  const auto got = read(*make_shm_reader(endpoint), Slots{5}, {2, 2});
  EXPECT_EQ(got.states[0], RowState::present);
  EXPECT_EQ(got.rows, rows);
}

TEST_F(ShmPutTest, TheWireLayoutHasNoStampsButTheRows) {
  endpoint.layout = ShmLayout::wire;
  ShmWriter writer(endpoint);
  writer.publish(1, unmarked(Slots{1, 2}), rows_of(endpoint.shape, 1, Slots{1, 2}));
  const auto reader = make_shm_reader(endpoint);
  const Slots slots{2, 3, 1};
  const std::vector<RowState> states{RowState::present, RowState::present, RowState::missing};
  reader->put(2, slots, rows_of(endpoint.shape, 77, slots), states);
  const auto got = read(*reader, Slots{2, 3});
  EXPECT_EQ(got.states[0], RowState::unverified);
  EXPECT_EQ(got.rows, rows_of(endpoint.shape, 77, Slots{2, 3}));
  EXPECT_EQ(state_of(*reader, 1), RowState::missing);
  expect_throw<ArgumentError>(
      [&] {
        reader->put(2, Slots{2, 2}, rows_of(endpoint.shape, 77, Slots{2, 2}), {});
      },
      {"slot 2", "twice"});
}

}  // namespace
}  // namespace moetap
