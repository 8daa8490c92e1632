// Rows that the device transport's reader lends out of its slot buffer (H25).
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/internal/channel.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::row_of;
using test::send_step;

using Slots = std::vector<Slot>;

class LendTest : public test::EndpointTest {
 protected:
  struct Lent {
    std::vector<const std::byte*> rows;
    std::vector<RowState> states;
    std::optional<Lease> lease;
  };
  Lent lend(const Slots& slots, StepWindow window = {}) {
    Lent lent{std::vector<const std::byte*>(slots.size()), std::vector<RowState>(slots.size()), {}};
    lent.lease = reader->lend(slots, {&window, 1}, lent.rows, lent.states, "request 7");
    return lent;
  }
  void send(Step step, const Slots& slots) { send_step(producer, endpoint.shape, step, slots); }
  void expect_row(const std::byte* row, Step step, std::size_t i) const {
    const auto expected = row_of(step, i, endpoint.shape.row_bytes());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), row));
  }

  ChannelProducer producer{endpoint};
  std::unique_ptr<SlotReadTransport> reader = make_device_reader(endpoint);
};

TEST_F(LendTest, RowsStayAsTheyAreWhileTheyAreLent) {
  send(1, {3, 4});
  reader->wait_for(1, Milliseconds(0));
  Lent lent = lend({4, 5, 3}, {1, 1});
  ASSERT_TRUE(lent.lease);
  EXPECT_EQ(lent.states[0], RowState::present);
  EXPECT_EQ(lent.states[1], RowState::missing);
  EXPECT_EQ(lent.rows[1], nullptr);
  send(2, {4, 3});
  EXPECT_EQ(reader->poll(), Step(1));
  expect_row(lent.rows[0], 1, 1);
  expect_row(lent.rows[2], 1, 0);
  lent.lease.reset();
  EXPECT_EQ(reader->poll(), Step(2));
}

TEST_F(LendTest, AWaitThatALeaseHoldsUpNamesItsHolder) {
  send(1, {3});
  reader->wait_for(1, Milliseconds(0));
  const Lent lent = lend({3});
  reader->wait_for(1, Milliseconds(0));  // is known already
  send(2, {4});
  expect_throw<TimeoutError>([&] { reader->wait_for(2, Milliseconds(1)); },
                             {"step 2", "request 7", "detach()"});
}

TEST_F(LendTest, AWaitGoesOnWhenTheLeaseEnds) {
  send(1, {3});
  reader->wait_for(1, Milliseconds(0));
  Lent lent = lend({3});
  send(2, {4});
  std::thread sender([&] { lent.lease.reset(); });
  reader->wait_for(2, Milliseconds(60'000));
  sender.join();
}

TEST_F(LendTest, NothingIsPutWhereRowsAreLent) {
  send(1, {3});
  reader->wait_for(1, Milliseconds(0));
  Lent lent = lend({3});
  const auto row = row_of(9, 9, endpoint.shape.row_bytes());
  expect_throw<StateError>([&] { reader->put(2, Slots{3}, row, {}); }, {"request 7", "detach()"});
  expect_row(lent.rows[0], 1, 0);
  lent.lease.reset();
  reader->put(2, Slots{3}, row, {});
}

TEST_F(LendTest, RefusesToLookAheadOfTheLastStep) {  // H17
  send(1, {3});
  reader->wait_for(1, Milliseconds(0));
  expect_throw<StateError>([&] { lend({3}, {1, 2}); }, {"up to step 2"});
}

TEST_F(LendTest, RefusesSlotsThatItDoesNotHave) {
  expect_throw<RangeError>([&] { lend({64}); }, {"slot 64"});
  std::vector<const std::byte*> rows(1);
  std::vector<RowState> states(2);
  const StepWindow any;
  expect_throw<ArgumentError>(
      [&] {
        (void)reader->lend(Slots{1, 2}, {&any, 1}, rows, states, "a");
      },
      {"2 slots"});
  EXPECT_EQ(reader->poll(), Step(0));
  send(1, {3});
  EXPECT_EQ(reader->poll(), Step(1));  // no lease was left
}

}  // namespace
}  // namespace moetap
