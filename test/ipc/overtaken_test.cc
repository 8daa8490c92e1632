// A counter in the ring that a neighbour wrote lets the worker use a record again while the
// scheduler's end reads it (H14). Wherever the reader is then, and also if the counter is put back
// before anyone looks: what it gets is an error, and no row.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "test/injection/injection.h"
#include "test/ipc/message_of.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::contains;
using test::message_of;
using Slots = std::vector<Slot>;

// What the worker has done with the record when the reader goes on.
enum class Then { fills, hands_over };

class Overtaken : public test::EndpointTest {
 protected:
  ~Overtaken() override { injection::on_point({}); }

  // Once, where the reader reaches `point`.
  void once_at(std::string_view point, const std::function<void()>& act) {
    injection::on_point([=, this](std::string_view at) {
      if (!reached && at == point) {
        reached = true;
        act();
      }
    });
  }
  // There the worker gets a record that the reader has not released, and does with it as `use`
  // says.
  void overtake_at(std::string_view point, const std::function<void()>& use) {
    once_at(point, [=, this] {
      const std::uint64_t before = ring.control().released;
      ring.control().released = ring.control().committed.load();
      use();
      ring.control().released = before;
    });
  }

  static Endpoint small(Endpoint endpoint) {
    endpoint.ring_depth = 2;
    endpoint.timeout = Milliseconds(0);
    return endpoint;
  }

  ChannelProducer worker{endpoint = small(endpoint)};
  Segment segment = Segment::open(ring_name(endpoint));
  Ring ring{segment.bytes(), endpoint};
  bool reached = false;
};

class OvertakenBySlot : public Overtaken,
                        public testing::WithParamInterface<std::tuple<const char*, Then>> {};

TEST_P(OvertakenBySlot, LeavesNoRowOfEitherStep) {
  const auto [point, then] = GetParam();
  const Slots slots{1, 2, 3, 7};
  const Slots other_slots{20, 21, 22, 2};
  const auto reader = make_device_reader(endpoint);
  const auto send = [&](Step step, const Slots& to) {
    test::send_step(worker, endpoint.shape, step, to);
  };
  send(1, slots);
  EXPECT_EQ(reader->poll(), Step(1));
  send(2, slots);
  send(3, {40});
  overtake_at(point, [&, then = then] {
    test::write_record(worker.acquire(), endpoint.shape, 4, other_slots);
    if (then == Then::hands_over) {
      worker.commit(test::describe(Descriptor::Kind::step, 4, other_slots.size()));
    }
  });
  const std::string text = message_of<MismatchError>([&] { reader->poll(); });
  EXPECT_TRUE(reached);
  EXPECT_TRUE(contains(text, "record 1")) << text;
  EXPECT_TRUE(contains(text, "overwritten")) << text;
  EXPECT_THROW(reader->poll(), MismatchError);  // and stays so

  for (const Slot slot :
       {Slot(1), Slot(2), Slot(3), Slot(7), Slot(20), Slot(21), Slot(22), Slot(40)}) {
    std::vector<std::byte> row(endpoint.shape.row_bytes());
    RowState state{};
    const StepWindow any{};
    reader->read({&slot, 1}, {&any, 1}, row, {&state, 1});
    if (state == RowState::missing) continue;
    const auto i = static_cast<std::size_t>(std::ranges::find(slots, slot) - slots.begin());
    ASSERT_LT(i, slots.size()) << "a row of slot " << slot;
    EXPECT_EQ(row, test::row_of(1, i, row.size())) << "slot " << slot;
  }
}

INSTANTIATE_TEST_SUITE_P(At, OvertakenBySlot,
                         testing::Combine(testing::Values("read peeked", "scatter marked",
                                                          "scatter copying", "scatter copied"),
                                          testing::Values(Then::fills, Then::hands_over)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::ranges::replace(name, ' ', '_');
                           return name + (std::get<1>(info.param) == Then::fills ? "_filled"
                                                                                 : "_handed_over");
                         });

// Nor does it use what others change in a record after it was checked, whichever process wrote the
// record.
TEST_F(Overtaken, ChangesOfSlotsThatWereCheckedAreNotSeen) {
  const auto reader = make_device_reader(endpoint);
  const Slots slots{1, 2, 3, 7};
  test::send_step(worker, endpoint.shape, 1, slots);
  once_at("scatter marking",
          [&] { StepRecordView(endpoint.shape, 4, ring.record(0)).slots[3] = MarkedSlot(50); });
  EXPECT_EQ(reader->poll(), Step(1));
  EXPECT_TRUE(reached);
  std::vector<Step> steps(2);
  reader->stamps(Slots{7, 50}, steps);
  EXPECT_EQ(steps, (std::vector<Step>{1, 0}));
}

class OvertakenByRequest : public Overtaken, public testing::WithParamInterface<Then> {
 protected:
  void fill(std::span<std::byte> record, RequestId request) const {
    std::memset(record.data(), static_cast<int>(RowState::present), 4);
    std::memset(&record[64], static_cast<int>(request.value()), 4 * endpoint.shape.row_bytes());
  }
  void send(RequestId request) {
    fill(worker.acquire(), request);
    worker.commit({.kind = Descriptor::Kind::request, .num_tokens = 4, .request = request});
  }
};

TEST_P(OvertakenByRequest, GivesNoRowsOfAnother) {
  const auto reader = make_request_reader(endpoint);
  send(7);
  (void)worker.acquire();
  worker.commit({.kind = Descriptor::Kind::request_end, .num_tokens = 4, .request = 7});
  overtake_at("read peeked", [&] {
    if (GetParam() == Then::hands_over) return send(9);
    fill(worker.acquire(), 9);
  });
  std::vector<std::byte> rows(4 * endpoint.shape.row_bytes());
  std::vector<RowState> states(4);
  const auto take = [&] { reader->take(7, {0, 4}, rows, states, Milliseconds(0)); };
  EXPECT_TRUE(contains(message_of<MismatchError>(take), "record 0"));
  EXPECT_TRUE(reached);
  EXPECT_THROW(take(), MismatchError);
}

// What has no bytes but its descriptor is looked at twice all the same.
TEST_P(OvertakenByRequest, BelievesNoStepOfAnother) {
  const auto reader = make_request_reader(endpoint);
  const auto step_done = [&](Step step) {
    (void)worker.acquire();
    worker.commit(test::describe(Descriptor::Kind::step_done, step, 0));
  };
  step_done(1);
  step_done(2);
  overtake_at("read peeked", [&] {
    if (GetParam() == Then::hands_over) return step_done(9);
    (void)worker.acquire();
  });
  EXPECT_THROW(reader->poll(), MismatchError);
  EXPECT_TRUE(reached);
}

INSTANTIATE_TEST_SUITE_P(Then, OvertakenByRequest, testing::Values(Then::fills, Then::hands_over),
                         [](const auto& info) {
                           return info.param == Then::fills ? "filled" : "handed_over";
                         });

}  // namespace
}  // namespace moetap
