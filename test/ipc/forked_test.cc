// A forked child has copies of its parent's objects, which it must not use: it would be a second
// writer, or a second consumer, of the same memory.
#include <moetap/directory_block_store.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/shm_writer.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/patterned_records.h"
#include "test/ipc/shm_test.h"
#include "test/lib/block_store_cases.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::descriptor_of;
using test::message_of;
using test::read;
using test::rows_of;
using test::send;

class ForkedTest : public test::ShmTest {
 protected:
  template <class Call>
  static void expect_refused(const char* what, const Call& call) {
    const std::string message = message_of<StateError>(call);
    EXPECT_TRUE(contains(message, what)) << message;
    EXPECT_TRUE(contains(message, "make one after the fork")) << message;
  }
  static constexpr rlimit kFewFiles{64, 64};
  const std::vector<Slot> slots{1, 5};
  std::vector<std::byte> rows(Step step) const { return rows_of(endpoint.shape, step, slots); }
};

TEST_F(ForkedTest, AChildPublishesAndFailsNoStepOfItsParentsWriter) {
  for (const ShmLayout layout : {ShmLayout::native, ShmLayout::wire}) {
    endpoint.layout = layout;
    ShmWriter writer(endpoint);
    const auto reader = make_shm_reader(endpoint);
    writer.publish(1, unmarked(slots), rows(1));
    ChildProcess child([&] {
      expect_refused("the ShmWriter of ", [&] { writer.publish(2, unmarked(slots), rows(2)); });
      expect_refused("the ShmWriter of ", [&] { writer.fail(2, unmarked(slots), "a child's"); });
    });
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(read(*reader, slots).rows, rows(1));
    if (layout == ShmLayout::native) {
      EXPECT_EQ(reader->poll(), Step(1));
    }
    writer.publish(2, unmarked(slots), rows(2));
    EXPECT_EQ(read(*reader, slots).rows, rows(2));
  }
}

TEST_F(ForkedTest, AChildPutsNoRowsWithItsParentsReader) {
  for (const ShmLayout layout : {ShmLayout::native, ShmLayout::wire}) {
    endpoint.layout = layout;
    ShmWriter writer(endpoint);
    const auto reader = make_shm_reader(endpoint);
    writer.publish(1, unmarked(slots), rows(1));
    ChildProcess child([&] {
      expect_refused("the reader of ", [&] { reader->put(1, slots, rows(7), {}); });
      EXPECT_EQ(read(*reader, slots).rows, rows(1)) << "it may read";
    });
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(read(*reader, slots).rows, rows(1));
  }
}

// The lock of a description that it shares with its parent would exclude neither from the other.
TEST_F(ForkedTest, AChildReadsUnderALockOfItsOwn) {
  endpoint.timeout = Milliseconds(30);
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  writer.publish(1, unmarked(slots), rows(1));
  test::BufferLock lock(endpoint);
  lock.lock();
  ChildProcess child([&] {
    EXPECT_THROW(read(*reader, slots), TimeoutError);
    EXPECT_FALSE(lock.try_lock());
  });
  EXPECT_EQ(child.join(), 0);
  lock.unlock();
  EXPECT_EQ(read(*reader, slots).rows, rows(1));
}

// Where it gets no descriptor of its own.
TEST_F(ForkedTest, AChildThatCanHaveNoLockReadsNothing) {
  ChildProcess parent([&] {
    ShmWriter writer(endpoint);
    const auto reader = make_shm_reader(endpoint);
    writer.publish(1, unmarked(slots), rows(1));
    ASSERT_EQ(prlimit(0, RLIMIT_NOFILE, &kFewFiles, nullptr), 0);
    int last = 0;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) last = fd;
    ChildProcess child([&] { EXPECT_THROW(read(*reader, slots), SystemError); });
    close(last);  // join() needs one
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(read(*reader, slots).rows, rows(1));
  });
  EXPECT_EQ(parent.join(), 0);
}

TEST_F(ForkedTest, AChildFillsNoRecordOfItsParentsRing) {
  ChannelProducer producer(endpoint);
  ChannelConsumer consumer(endpoint);
  ChildProcess child(
      [&] { expect_refused("the ChannelProducer of ", [&] { (void)producer.acquire(); }); });
  EXPECT_EQ(child.join(), 0);
  (void)producer.acquire();
  ChildProcess second([&] { producer.commit(descriptor_of(1)); });
  const int status = second.join();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  EXPECT_EQ(consumer.peek(), nullptr);
  producer.commit(descriptor_of(1));
  EXPECT_NE(consumer.peek(), nullptr);
}

TEST_F(ForkedTest, AChildTakesNoRecordOfItsParentsRing) {
  ChannelProducer producer(endpoint);
  ChannelConsumer consumer(endpoint);
  send(producer, 1);
  ASSERT_NE(consumer.peek(), nullptr);
  ChildProcess child([&] {
    expect_refused("the ChannelConsumer of ", [&] { (void)consumer.peek(); });
    expect_refused("the ChannelConsumer of ", [&] { consumer.release(); });
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(consumer.peek()->descriptor.step, Step(1));
  consumer.release();
  EXPECT_EQ(consumer.peek(), nullptr);
}

TEST_F(ForkedTest, H25AChildThatEndsItsLeasesLeavesTheParentsNote) {
  endpoint.timeout = Milliseconds(1);
  ChannelProducer producer(endpoint);
  ChannelConsumer consumer(endpoint);
  consumer.show_leases(1, "the parent's view", std::chrono::steady_clock::now());
  ChildProcess child([&] { consumer.show_leases(0, {}, {}); });
  EXPECT_EQ(child.join(), 0);
  for (int i = 0; i < endpoint.ring_depth; ++i) (void)producer.acquire();
  const std::string message = message_of<TimeoutError>([&] { (void)producer.acquire(); });
  EXPECT_TRUE(contains(message, "the parent's view")) << message;
}

TEST_F(ForkedTest, AChildHoldsNoBlockWithItsParentsStore) {
  const auto store =
      make_directory_block_store(directory.path() / "blocks", test::small_store(100));
  test::put(*store, 1);
  ASSERT_TRUE(store->hold(test::key_of(1)));
  ChildProcess child(
      [&] { expect_refused("the block store ", [&] { store->hold(test::key_of(1)); }); });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace moetap
