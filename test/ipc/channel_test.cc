#include "ipc/internal/channel.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/wait.h"
#include "lib/internal/step_record.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/patterned_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::descriptor_of;
using test::expect_next;
using test::fill;
using test::holds;
using test::message_of;
using test::send;
using test::Signal;

constexpr Milliseconds kPatience{test::kPatienceMs};

using ChannelTest = test::EndpointTest;

TEST_F(ChannelTest, HandsRecordsToAnotherProcessWholeAndInOrder) {
  static constexpr Step kSteps = 2000;
  ChildProcess worker([this] {
    ChannelProducer producer(endpoint);
    for (Step step = 1; step <= kSteps; ++step) send(producer, step);
    // The ring goes with its owner, so stay until all of it was read.
    for (int i = 0; i < endpoint.ring_depth; ++i) (void)producer.acquire();
  });
  ChannelConsumer consumer(endpoint);
  for (Step step = 1; step <= kSteps; ++step) ASSERT_NO_FATAL_FAILURE(expect_next(consumer, step));
  EXPECT_EQ(worker.join(), 0);
}

TEST_F(ChannelTest, RecordsArePageAlignedAndLieInTheMemoryToPin) {
  ChannelProducer producer(endpoint);
  const std::span<std::byte> all = producer.memory();
  for (int i = 0; i < endpoint.ring_depth; ++i) {
    const std::span<std::byte> record = producer.acquire();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(record.data()) % 4096, 0u);
    EXPECT_EQ(record.size(), StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes);
    EXPECT_GE(record.data(), all.data());
    EXPECT_LE(record.data() + record.size(), all.data() + all.size());
  }
}

TEST_F(ChannelTest, PeekReturnsTheSameRecordUntilItIsReleased) {
  ChannelProducer producer(endpoint);
  ChannelConsumer consumer(endpoint);
  EXPECT_EQ(consumer.peek(), nullptr);
  EXPECT_THROW(consumer.release(), StateError);
  send(producer, 1);
  send(producer, 2);
  EXPECT_EQ(consumer.peek()->descriptor.step, Step(1));
  EXPECT_EQ(consumer.peek()->descriptor.step, Step(1));
  consumer.release();
  EXPECT_EQ(consumer.peek()->descriptor.step, Step(2));
}

TEST_F(ChannelTest, ARecordIsSeenOnlyAfterItsCommit) {
  ChannelProducer producer(endpoint);
  ChannelConsumer consumer(endpoint);
  (void)producer.acquire();
  EXPECT_EQ(consumer.peek(), nullptr);
  EXPECT_FALSE(consumer.wait(Milliseconds(0)));
  producer.commit(descriptor_of(1));
  EXPECT_NE(consumer.peek(), nullptr);
}

// H14
TEST_F(ChannelTest, AFullRingMakesTheWorkerWaitAndThenFailWithAllNames) {
  endpoint.ring_depth = 2;
  Signal attached, failed;
  ChildProcess scheduler([&] {
    ChannelConsumer consumer(endpoint);
    attached.raise();
    failed.wait();
    expect_next(consumer, 7);
    expect_next(consumer, 8);
  });
  Endpoint impatient = endpoint;
  impatient.timeout = Milliseconds(50);
  ChannelProducer producer(impatient);
  attached.wait();
  send(producer, 7);
  send(producer, 8);
  const std::string text = message_of<TimeoutError>([&] { (void)producer.acquire(); });
  EXPECT_TRUE(contains(text, "waited 50 ms")) << text;
  EXPECT_TRUE(contains(text, "of its 2 records 2 wait")) << text;
  EXPECT_TRUE(contains(text, "step 7")) << text;
  EXPECT_TRUE(contains(text, "process " + std::to_string(scheduler.pid()))) << text;
  EXPECT_TRUE(contains(text, "raise ring_depth")) << text;
  failed.raise();
  EXPECT_EQ(scheduler.join(), 0);
}

// H14: the consumer keeps looking at a record for a while, and it must not change meanwhile.
TEST_F(ChannelTest, NeverOverwritesARecordThatASlowConsumerHolds) {
  constexpr Step kSteps = 400;
  for (const unsigned seed : {1u, 2u, 3u}) {
    endpoint.ring_depth = 1 + static_cast<int>(seed);
    ChildProcess scheduler([&] {
      ChannelConsumer consumer(endpoint);
      std::mt19937 random(seed);
      for (Step step = 1; step <= kSteps; ++step) {
        ASSERT_TRUE(consumer.wait(kPatience));
        const ChannelConsumer::Item* item = consumer.peek();
        ASSERT_TRUE(holds(item->bytes, step)) << "step " << step << ", seed " << seed;
        if (random() % 8 == 0) {  // give the worker every chance to do harm
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        }
        ASSERT_TRUE(holds(item->bytes, step)) << "step " << step << ", seed " << seed;
        ASSERT_EQ(item->descriptor.step, step);
        consumer.release();
      }
    });
    ChannelProducer producer(endpoint);
    for (Step step = 1; step <= kSteps; ++step) send(producer, step);
    EXPECT_EQ(scheduler.join(), 0);
  }
}

TEST_F(ChannelTest, AnotherThreadMayCommit) {
  constexpr Step kSteps = 500;
  Signal acquired;  // as a stream would order them
  ChannelProducer producer(endpoint);
  std::thread callback([&] {
    for (Step step = 1; step <= kSteps; ++step) {
      acquired.wait();
      producer.commit(descriptor_of(step));
    }
  });
  std::thread worker([&] {
    for (Step step = 1; step <= kSteps; ++step) {
      fill(producer.acquire(), step);
      acquired.raise();
    }
    producer.wait_committed(kPatience);
  });
  ChannelConsumer consumer(endpoint);
  for (Step step = 1; step <= kSteps; ++step) expect_next(consumer, step);
  worker.join();
  callback.join();
}

TEST_F(ChannelTest, WaitCommittedReturnsWhenEveryAcquiredRecordIsHandedOver) {
  ChannelProducer producer(endpoint);
  producer.wait_committed(Milliseconds(0));
  (void)producer.acquire();
  EXPECT_THROW(producer.wait_committed(Milliseconds(1)), TimeoutError);
  producer.commit(descriptor_of(1));
  producer.wait_committed(Milliseconds(0));
}

TEST_F(ChannelTest, CommitWithoutAcquireEndsTheWorker) {
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    producer.commit(descriptor_of(1));
  });
  const int status = worker.join();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

TEST_F(ChannelTest, ASecondConsumerIsToldWhoTheFirstIs) {
  Signal attached, checked;
  ChildProcess first([&] {
    ChannelConsumer consumer(endpoint);
    attached.raise();
    checked.wait();
  });
  ChannelProducer producer(endpoint);
  attached.wait();
  const std::string text = message_of<OwnedError>([&] { ChannelConsumer second(endpoint); });
  EXPECT_TRUE(contains(text, std::to_string(first.pid()))) << text;
  checked.raise();
  EXPECT_EQ(first.join(), 0);
  ChannelConsumer next(endpoint);  // the first is gone, so there is room for another
}

TEST_F(ChannelTest, AConsumerGoesOnWhereAKilledOneStood) {
  Signal stopped;
  ChildProcess first([&] {
    ChannelConsumer consumer(endpoint);
    expect_next(consumer, 1);
    ASSERT_TRUE(consumer.wait(kPatience));
    ASSERT_EQ(consumer.peek()->descriptor.step, Step(2));  // looked at, but not released
    stopped.raise();
    pause();
  });
  ChannelProducer producer(endpoint);
  for (Step step = 1; step <= 4; ++step) send(producer, step);
  stopped.wait();
  first.kill();
  ChannelConsumer second(endpoint);
  for (Step step = 2; step <= 4; ++step) expect_next(second, step);
  for (Step step = 5; step <= 20; ++step) {
    send(producer, step);
    expect_next(second, step);
  }
}

TEST_F(ChannelTest, AReaderBeforeItsWorkerWaitsForIt) {
  Signal go;
  ChildProcess worker([&] {
    go.wait();
    ChannelProducer producer(endpoint);
    send(producer, 1);
    for (int i = 0; i < endpoint.ring_depth; ++i) (void)producer.acquire();
  });
  std::thread later([&] { go.raise(); });
  ChannelConsumer consumer(endpoint);
  expect_next(consumer, 1);
  later.join();
  EXPECT_EQ(worker.join(), 0);
}

TEST_F(ChannelTest, AReaderWithoutAWorkerNamesWhatItWaitedFor) {
  endpoint.timeout = Milliseconds(30);
  const std::string text = message_of<TimeoutError>([&] { ChannelConsumer consumer(endpoint); });
  EXPECT_TRUE(contains(text, "/moetap_" + endpoint.instance + "_0_ring")) << text;
}

TEST_F(ChannelTest, ADeadWorkersRingIsNotReadAndIsReplacedByTheNext) {
  Signal ready;
  ChildProcess dead([&] {
    ChannelProducer producer(endpoint);
    send(producer, 1);
    ready.raise();
    pause();
  });
  ready.wait();
  dead.kill();
  Endpoint impatient = endpoint;
  impatient.timeout = Milliseconds(300);
  const std::string text = message_of<TimeoutError>([&] { ChannelConsumer consumer(impatient); });
  // Any process that creates a segment meanwhile removes it.
  EXPECT_TRUE(contains(text, "died") || contains(text, "there is none")) << text;

  ChannelProducer producer(endpoint);
  ChannelConsumer consumer(endpoint);
  EXPECT_EQ(consumer.peek(), nullptr);
  send(producer, 5);
  expect_next(consumer, 5);
}

// H22
TEST_F(ChannelTest, ASecondProducerIsAnError) {
  ChannelProducer first(endpoint);
  const std::string text = message_of<OwnedError>([&] { ChannelProducer second(endpoint); });
  EXPECT_TRUE(contains(text, std::to_string(getpid()))) << text;
}

TEST_F(ChannelTest, RecordsOfAWorkerThatDiedAreStillDeliveredAndThenTheWaitEndsAtOnce) {
  Signal attached, ready;
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    attached.wait();
    send(producer, 1);
    send(producer, 2);
    ready.raise();
    pause();
  });
  ChannelConsumer consumer(endpoint);
  EXPECT_TRUE(consumer.producer_alive());
  attached.raise();
  ready.wait();
  worker.kill();
  expect_next(consumer, 1);
  expect_next(consumer, 2);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(consumer.wait(std::chrono::hours(1)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
  EXPECT_FALSE(consumer.producer_alive());
}

TEST_F(ChannelTest, AReaderOfAnotherShapeIsToldBoth) {
  ChannelProducer producer(endpoint);
  Endpoint other = endpoint;
  other.shape = ModelShape::uniform(5, 4, 32);
  const std::string text = message_of<MismatchError>([&] { ChannelConsumer consumer(other); });
  EXPECT_TRUE(contains(text, endpoint.shape.to_string())) << text;
  EXPECT_TRUE(contains(text, other.shape.to_string())) << text;
  // The same numbers, but another layer; or another declaration.
  for (const ModelShape& shape : {ModelShape({0, 1, 4}, 2, 16), ModelShape({0, 1, 2}, 2, 16, 9),
                                  endpoint.shape.with_repeated_experts()}) {
    other.shape = shape;
    EXPECT_THROW(ChannelConsumer consumer(other), MismatchError);
  }
}

TEST_F(ChannelTest, AReaderOfOtherWeightsIsToldBoth) {
  endpoint.shape = endpoint.shape.with_weights(WeightType::float32);
  ChannelProducer producer(endpoint);
  Endpoint other = endpoint;
  for (const WeightType type : {WeightType::none, WeightType::bfloat16}) {
    other.shape = other.shape.with_weights(type);
    const std::string text = message_of<MismatchError>([&] { ChannelConsumer consumer(other); });
    EXPECT_TRUE(
        contains(text, endpoint.shape.to_string() + ", this reader " + other.shape.to_string()))
        << text;
  }
}

TEST_F(ChannelTest, AReaderOfOtherSizesIsToldBoth) {
  ChannelProducer producer(endpoint);
  const auto expect_both = [&](auto change, const std::string& theirs, const std::string& ours) {
    Endpoint other = endpoint;
    change(other);
    const std::string text = message_of<MismatchError>([&] { ChannelConsumer consumer(other); });
    EXPECT_TRUE(contains(text, theirs)) << text;
    EXPECT_TRUE(contains(text, ours)) << text;
  };
  expect_both([](Endpoint& e) { e.num_slots = 128; }, "num_slots 64", "128");
  expect_both([](Endpoint& e) { e.max_tokens = 16; }, "max_tokens 8", "16");
  expect_both([](Endpoint& e) { e.ring_depth = 9; }, "ring_depth 4", "9");
}

TEST_F(ChannelTest, BadEndpointsAreRefusedBeforeAnythingIsMade) {
  endpoint.ring_depth = 0;
  EXPECT_THROW(ChannelProducer producer(endpoint), ArgumentError);
  EXPECT_THROW(ChannelConsumer consumer(endpoint), ArgumentError);
}

// The one before died after it had given a record back and before it said so.
TEST_F(ChannelTest, WhoTakesOverWakesAProducerThatTheLastOneLeftAsleep) {
  endpoint.ring_depth = 1;
  endpoint.timeout = 10 * kPatience;
  Signal full;
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    send(producer, 1);
    full.raise();
    (void)producer.acquire();
  });
  full.wait();
  const Segment segment = Segment::open(ring_name(endpoint));
  RingControl& control = Ring(segment.bytes(), endpoint).control();
  const auto sleeps = [&](std::uint32_t sleepers) {
    const auto deadline = deadline_after(kPatience);
    while (control.freed.sleepers != sleepers && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return control.freed.sleepers == sleepers;
  };
  ASSERT_TRUE(sleeps(1));
  control.released = 1;
  const ChannelConsumer next(endpoint);
  EXPECT_TRUE(sleeps(0));
}

}  // namespace
}  // namespace moetap
