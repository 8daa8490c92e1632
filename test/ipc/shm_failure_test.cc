// The native layout when processes die, stop or look at other files.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "ipc/internal/claim.h"
#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_ends.h"
#include "ipc/internal/shm_writer.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::kPatience;
using test::message_of;
using test::read;
using test::rows_of;
using test::Signal;
using test::state_of;

using Clock = std::chrono::steady_clock;
using Slots = std::vector<Slot>;

class ShmFailure : public test::ShmTest {
 protected:
  void publish(ShmWriter& writer, Step step, const Slots& slots) const {
    writer.publish(step, unmarked(slots), rows_of(endpoint.shape, step, slots));
  }
  Endpoint hasty() const {
    Endpoint result = endpoint;
    result.timeout = Milliseconds(30);
    return result;
  }
};

TEST_F(ShmFailure, WaitingForADeadWorkerEndsWellBeforeTheLimitAndSaysSo) {
  Signal published;
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    publish(writer, 1, {1});
    published.raise();
    pause();
  });
  const auto reader = make_shm_reader(endpoint);
  published.wait();
  worker.kill();
  reader->wait_for(1, kPatience);  // its last words
  EXPECT_EQ(state_of(*reader, 1), RowState::present);
  const std::string message =
      message_of<TimeoutError>([&] { reader->wait_for(2, std::chrono::hours(24)); });
  EXPECT_TRUE(contains(message, "died")) << message;
  EXPECT_TRUE(contains(message, "Start the worker and a new reader")) << message;
  EXPECT_TRUE(contains(message, std::to_string(worker.pid()))) << message;
  EXPECT_TRUE(contains(message, "step 2")) << message;
}

TEST_F(ShmFailure, WaitingForAStepThatDoesNotComeEndsAtTheLimit) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  publish(writer, 1, {1});
  const auto start = Clock::now();
  const std::string message =
      message_of<TimeoutError>([&] { reader->wait_for(2, Milliseconds(50)); });
  EXPECT_GE(Clock::now() - start, Milliseconds(50));
  EXPECT_TRUE(contains(message, "lives")) << message;
  EXPECT_TRUE(contains(message, std::to_string(getpid()))) << message;
}

// A restarted engine numbers its steps from 1 again: an old buffer's stamps would fit its windows.
TEST_F(ShmFailure, H23AReaderNeverAttachesToADeadWorkersBufferAndTheNextWorkerReclaimsIt) {
  ChildProcess dead([&] {
    ShmWriter writer(endpoint);
    publish(writer, 1, {1, 2});
    _exit(0);
  });
  ASSERT_EQ(dead.join(), 0);
  const std::string message = message_of<TimeoutError>([&] { (void)make_shm_reader(hasty()); });
  EXPECT_TRUE(contains(message, buffer_name(endpoint))) << message;
  // Any process that creates a segment meanwhile removes it.
  EXPECT_TRUE(contains(message, "died") || contains(message, "there is none")) << message;
  ShmWriter next(endpoint);
  publish(next, 1, {2});
  const auto reader = make_shm_reader(endpoint);
  EXPECT_EQ(state_of(*reader, 1), RowState::missing);
  EXPECT_EQ(state_of(*reader, 2), RowState::present);
}

// Its rows end at a page that it may not read, so it dies there by itself, holding the lock.
TEST_F(ShmFailure, AWorkerThatDiesWhilePublishingLeavesMissingRowsAndAFreeLock) {
  endpoint.shape = ModelShape::uniform(64, 8, 256);  // 512 bytes a row
  Signal published;
  Signal go;
  ChildProcess worker([&] {
    signal(SIGSEGV, SIG_DFL);
    ShmWriter writer(endpoint);
    const Slots slots{1, 3, 5, 7};
    publish(writer, 1, slots);
    published.raise();
    go.wait();
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    auto* memory = static_cast<std::byte*>(
        mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory + page, page, PROT_NONE);
    writer.publish(2, unmarked(slots), {memory + page - 2 * 512, 4 * 512});
  });
  const auto reader = make_shm_reader(endpoint);
  published.wait();
  EXPECT_EQ(state_of(*reader, 1), RowState::present);
  go.raise();
  EXPECT_TRUE(WIFSIGNALED(worker.join()));
  const Slots all{1, 3, 5, 7};
  for (const RowState state : read(*reader, all).states) EXPECT_EQ(state, RowState::missing);
  EXPECT_EQ(reader->poll(), Step(1));
}

TEST_F(ShmFailure, H24ALockThatIsNotGivenBackEndsInAnErrorThatNamesFileAndHolder) {
  endpoint.timeout = Milliseconds(50);
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  publish(writer, 1, {1});
  Signal held;
  ChildProcess stuck([&] {
    test::BufferLock lock(endpoint);
    lock.lock();
    held.raise();
    pause();
  });
  held.wait();
  for (const auto& message : {message_of<TimeoutError>([&] { publish(writer, 2, {1}); }),
                              message_of<TimeoutError>([&] { writer.fail(2, {}, "why"); }),
                              message_of<TimeoutError>([&] { state_of(*reader, 1); })}) {
    EXPECT_TRUE(contains(message, "/dev/shm" + buffer_name(endpoint))) << message;
    EXPECT_TRUE(contains(message, std::to_string(stuck.pid()))) << message;
  }
  const std::string told = message_of<TimeoutError>([&] { publish(writer, 2, {1}); });
  EXPECT_TRUE(contains(told, "readers held it for at most")) << told;
  EXPECT_EQ(reader->poll(), Step(1));
  stuck.kill();
  EXPECT_EQ(state_of(*reader, 1, {1, 1}), RowState::present);
  publish(writer, 2, {1});
  EXPECT_EQ(state_of(*reader, 1, {2, 2}), RowState::present);
}

class ScribbledBuffer : public ShmFailure {
 protected:
  ShmWriter writer{endpoint};
  Segment segment = Segment::open(buffer_name(endpoint));
  ShmControl& control = *reinterpret_cast<ShmControl*>(segment.bytes().data());
};

TEST_F(ScribbledBuffer, AnotherMagicOrVersionIsRefused) {
  control.head.magic = 0x1234;
  EXPECT_THROW(make_shm_reader(endpoint), MismatchError);
  control.head.magic = kShmMagic;
  for (const std::uint32_t other : {kShmVersion - 1, kShmVersion + 1}) {
    control.head.fields.version = other;
    const std::string text = message_of<MismatchError>([&] { (void)make_shm_reader(endpoint); });
    EXPECT_TRUE(contains(text, "layout version " + std::to_string(other))) << text;
  }
}

TEST_F(ScribbledBuffer, AReasonWithoutAnEndIsCutAtItsPlace) {
  const auto reader = make_shm_reader(endpoint);
  writer.fail(1, {}, "why");
  std::ranges::fill(control.failed[0].reason, 'y');
  control.failed[1].step = 0x7979'7979'7979'7979;  // letters, too
  try {
    reader->wait_for(1, kPatience);
    FAIL() << "no error";
  } catch (const StepFailed& error) {
    EXPECT_EQ(error.reason(), std::string(sizeof control.failed[0].reason, 'y'));
  }
}

TEST_F(ScribbledBuffer, ABufferThatIsStillBeingMadeIsWaitedFor) {
  control.head.magic = 0;
  const std::string message = message_of<TimeoutError>([&] { (void)make_shm_reader(hasty()); });
  EXPECT_TRUE(contains(message, buffer_name(endpoint))) << message;
}

// Not even one page of it: where the worker is about to back it with huge pages, a small one that a
// waiting reader has made would be in the way.
TEST_F(ShmFailure, AReaderThatWaitsForABufferMakesNoPageOfIt) {
  const std::string name = buffer_name(endpoint);
  struct Made {
    std::string name;
    int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    ~Made() {
      close(fd);
      shm_unlink(name.c_str());
    }
  } const made{name};
  ASSERT_EQ(ftruncate(made.fd, 1 << 21), 0);
  ASSERT_TRUE(try_claim(made.fd, Role::owner, name));
  const std::string text = message_of<TimeoutError>([&] { (void)make_shm_reader(hasty()); });
  EXPECT_TRUE(contains(text, "is still making it")) << text;
  struct stat status {};
  ASSERT_EQ(fstat(made.fd, &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

TEST_F(ShmFailure, H24TheLongestWaitAndHoldsAreReported) {
  ShmWriter writer(endpoint);
  EXPECT_EQ(writer.lock_times().writer_hold, std::chrono::nanoseconds(0));
  Signal held;
  ChildProcess other([&] {
    const Segment segment = Segment::open(buffer_name(endpoint));
    const auto& control = *reinterpret_cast<const ShmControl*>(segment.bytes().data());
    test::BufferLock lock(endpoint);
    lock.lock();
    held.raise();
    while (control.writer_waits == 0) usleep(100);
    usleep(30'000);
  });
  held.wait();
  publish(writer, 1, {1});
  EXPECT_EQ(other.join(), 0);
  EXPECT_EQ(writer.lock_times().reader_hold, std::chrono::nanoseconds(0));
  ChildProcess reading(
      [&] { EXPECT_EQ(state_of(*make_shm_reader(endpoint), 1), RowState::present); });
  EXPECT_EQ(reading.join(), 0);
  const LockTimes times = writer.lock_times();
  EXPECT_GT(times.writer_wait, Milliseconds(15));
  EXPECT_GT(times.writer_hold, std::chrono::nanoseconds(0));
  EXPECT_GT(times.reader_hold, std::chrono::nanoseconds(0));
  EXPECT_GT(times.reader_wait, std::chrono::nanoseconds(0));
}

TEST_F(ShmFailure, H24AWriterThatMustWaitSaysSoUntilItHasTheLock) {
  ShmWriter writer(endpoint);
  Signal held;
  ChildProcess reading([&] {
    const Segment segment = Segment::open(buffer_name(endpoint));
    const auto& control = *reinterpret_cast<const ShmControl*>(segment.bytes().data());
    test::BufferLock lock(endpoint);
    lock.lock_shared();
    held.raise();
    while (control.writer_waits == 0) usleep(100);
  });
  held.wait();
  publish(writer, 1, {1});
  EXPECT_EQ(reading.join(), 0);
  const Segment segment = Segment::open(buffer_name(endpoint));
  EXPECT_EQ(reinterpret_cast<const ShmControl*>(segment.bytes().data())->writer_waits, 0u);
}

class ShmLongRead : public ShmFailure {
 protected:
  static constexpr std::size_t kRows = 3 * kBytesPerHold / 512;  // takes the lock three times

  ShmLongRead() {
    endpoint.shape = ModelShape::uniform(64, 8, 256);  // 512 bytes a row
    endpoint.num_slots = endpoint.max_tokens = std::int64_t{kRows};
  }
  ShmControl& control(const Segment& segment) const {
    return *reinterpret_cast<ShmControl*>(segment.bytes().data());
  }
};

TEST_F(ShmLongRead, H24LetsAWriterGoFirstButNotForEver) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  control(Segment::open(buffer_name(endpoint))).writer_waits = 1;
  const auto start = Clock::now();
  EXPECT_EQ(state_of(*reader, 1), RowState::missing);
  EXPECT_GE(Clock::now() - start, kWriterFirst);
}

TEST_F(ShmLongRead, H24AWriterThatDiedWhileItWaitedIsNotLetGoFirstForEver) {
  Signal created;
  Signal attached;
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    created.raise();
    attached.wait();
    publish(writer, 1, {1});
  });
  created.wait();
  const auto reader = make_shm_reader(endpoint);
  const Segment segment = Segment::open(buffer_name(endpoint));
  test::BufferLock lock(endpoint);
  {
    const auto held = lock_within(lock, kPatience);
    attached.raise();
    while (control(segment).writer_waits == 0) usleep(100);
    worker.kill();
  }
  // The fastest of some: each would give way for all of kWriterFirst.
  auto fastest = Clock::duration::max();
  for (int i = 0; i < 20; ++i) {
    const auto start = Clock::now();
    state_of(*reader, 1);
    fastest = std::min<Clock::duration>(fastest, Clock::now() - start);
  }
  EXPECT_LT(fastest, kWriterFirst / 2);
}

// Some time another process has the lock while a read is under way.
TEST_F(ShmLongRead, H24GivesTheLockBackOnTheWay) {
  constexpr auto kNotYet = static_cast<RowState>(99);
  ShmWriter writer(endpoint);
  control(Segment::open(buffer_name(endpoint))).writer_waits = 1;  // pauses between the pieces
  const test::SharedObject<std::array<RowState, kRows>> states;
  states->fill(kNotYet);
  ChildProcess reading([&] {
    const auto reader = make_shm_reader(endpoint);
    std::vector<std::byte> bytes(kRows * endpoint.shape.row_bytes());
    const StepWindow window;
    for (;;) {
      states->fill(kNotYet);
      reader->read(Slots(kRows), {&window, 1}, bytes, *states);
    }
  });
  test::BufferLock lock(endpoint);
  bool on_the_way = false;
  for (const auto stop = Clock::now() + kPatience / 4; !on_the_way && Clock::now() < stop;) {
    const auto held = lock_within(lock, kPatience);
    on_the_way = states->front() != kNotYet && states->back() == kNotYet;
  }
  EXPECT_TRUE(on_the_way);
}

}  // namespace
}  // namespace moetap
