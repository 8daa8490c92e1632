#include <moetap/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "test/ipc/message_of.h"
#include "test/ipc/patterned_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::contains;
using test::descriptor_of;
using test::expect_next;
using test::message_of;
using test::send;

// What a mad process may write into the ring.
class ScribbledRing : public test::EndpointTest {
 protected:
  ChannelProducer producer{endpoint};
  Segment segment = Segment::open(ring_name(endpoint));
  Ring ring{segment.bytes(), endpoint};
};

TEST_F(ScribbledRing, OfAnotherKindOrVersionIsRefused) {
  ring.control().head.fields.version += 1;
  EXPECT_TRUE(contains(message_of<MismatchError>([&] { ChannelConsumer consumer(endpoint); }),
                       "version " + std::to_string(kRingVersion + 1)));
  ring.control().head.fields.version -= 1;
  ring.control().head.magic = 42;
  EXPECT_TRUE(
      contains(message_of<MismatchError>([&] { ChannelConsumer consumer(endpoint); }), "magic"));
  ring.control().head.magic = kRingMagic;
  ChannelConsumer consumer(endpoint);
}

TEST_F(ScribbledRing, OfTooFewBytesIsRefused) {
  Endpoint other = test::test_endpoint();
  Segment small = Segment::create(ring_name(other), Ring::bytes(other) - 1);
  auto* control = new (small.bytes().data()) RingControl;
  control->head.publish(other, kRingMagic, kRingVersion);
  const std::string text = message_of<MismatchError>([&] { ChannelConsumer consumer(other); });
  EXPECT_TRUE(contains(text, std::to_string(Ring::bytes(other)))) << text;
}

TEST_F(ScribbledRing, EveryBadDescriptorIsAMismatch) {
  using Kind = Descriptor::Kind;
  ChannelConsumer consumer(endpoint);
  send(producer, 1);
  Descriptor& shared = ring.descriptor(0);
  const Descriptor good = shared;
  const auto expect_refused = [&](auto scribble, const std::string& named) {
    shared = good;
    scribble(shared);
    const std::string text = message_of<MismatchError>([&] { (void)consumer.peek(); });
    EXPECT_TRUE(contains(text, named)) << text;
  };
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  expect_refused([](Descriptor& d) { d.kind = static_cast<Kind>(5); }, "kind is 5");
  expect_refused([](Descriptor& d) { d.step = 0; }, "step is 0");
  expect_refused([](Descriptor& d) { d.num_tokens = -1; }, "num_tokens is -1");
  expect_refused([](Descriptor& d) { d.num_tokens = 9; }, "num_tokens is 9");
  expect_refused([](Descriptor& d) { d.num_tokens = kMost; }, "num_tokens");
  expect_refused([](Descriptor& d) { d.position = -1; }, "position is -1");
  expect_refused([](Descriptor& d) { d.position = kMost; }, "position");
  expect_refused([](Descriptor& d) { std::ranges::fill(d.text, 'x'); }, "text");
  expect_refused(
      [](Descriptor& d) {
        d.kind = Kind::request;
        d.num_tokens = 9;
      },
      "num_tokens is 9");
  expect_refused(
      [](Descriptor& d) {
        d.kind = Kind::request_end;
        d.num_tokens = -1;
      },
      "num_tokens is -1");
  shared = good;
  expect_next(consumer, 1);  // what was refused is still there
}

TEST_F(ScribbledRing, ACheckedDescriptorDoesNotChangeUnderItsReader) {
  ChannelConsumer consumer(endpoint);
  send(producer, 1);
  const ChannelConsumer::Item* item = consumer.peek();
  ring.descriptor(0).num_tokens = 1'000'000;
  EXPECT_EQ(item->descriptor.num_tokens, descriptor_of(1).num_tokens);
}

TEST_F(ScribbledRing, MoreRecordsThanFitAreAMismatch) {
  ChannelConsumer consumer(endpoint);
  send(producer, 1);
  ring.control().committed = 5;
  EXPECT_THROW((void)consumer.peek(), MismatchError);
}

// The place still holds an older record, whole and good: but not the one that it claims to be.
TEST_F(ScribbledRing, ARecordThatWasNotHandedOverIsAMismatch) {
  ChannelConsumer consumer(endpoint);
  for (Step step = 1; step <= 4; ++step) {
    send(producer, step);
    expect_next(consumer, step);
  }
  ring.control().committed = 5;
  const std::string text = message_of<MismatchError>([&] { (void)consumer.peek(); });
  EXPECT_TRUE(contains(text, "record 4 is not there")) << text;
  send(producer, 5);
  expect_next(consumer, 5);
}

TEST_F(ScribbledRing, ARecordThatIsUsedAgainWhileItIsReadIsAMismatch) {
  ChannelConsumer consumer(endpoint);
  for (Step step = 1; step <= 4; ++step) send(producer, step);
  ASSERT_NE(consumer.peek(), nullptr);
  consumer.require_unchanged();
  ring.control().released = 4;
  (void)producer.acquire();  // and has not written anything yet
  ring.control().released = 0;
  const std::string text = message_of<MismatchError>([&] { consumer.require_unchanged(); });
  EXPECT_TRUE(contains(text, "record 0 was used again")) << text;
}

// H14: the consumer's counter may not talk the worker into overwriting a record.
TEST_F(ScribbledRing, AConsumerThatReleasesWhatItNeverGotIsAMismatch) {
  send(producer, 1);
  ring.control().released = 2;
  EXPECT_THROW((void)producer.acquire(), MismatchError);
  ring.control().released = std::numeric_limits<std::uint64_t>::max() - 1;
  EXPECT_THROW((void)producer.acquire(), MismatchError);
  ring.control().released = 0;
  (void)producer.acquire();
}

}  // namespace
}  // namespace moetap
