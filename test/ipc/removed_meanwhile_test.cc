// What is removed at the very moment when another process looks (H38).
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/segments.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/table/wire_lock.h"
#include "test/injection/injection.h"
#include "test/ipc/child_process.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::rows_of;
using test::state_of;
using Slots = std::vector<Slot>;

class RemovedMeanwhile : public test::ShmTest {
 protected:
  ~RemovedMeanwhile() override { injection::on_point({}); }

  // Calls look() where the owner that ends has removed its name, but has not yet ended.
  template <class Owner, class Look>
  static int look_at_the_end(std::optional<Owner>& owner, Look&& look) {
    int looked = 0;
    injection::on_point([&](std::string_view point) {
      if (point != "close unlinked") return;
      ++looked;
      look();
    });
    owner.reset();
    injection::on_point({});
    return looked;
  }
};

TEST_F(RemovedMeanwhile, H38AWorkerThatEndsIsNotTakenForOneWhoseMemoryWasRemoved) {
  std::optional<ShmWriter> writer(std::in_place, endpoint);
  writer->publish(1, unmarked(Slots{1}), rows_of(endpoint.shape, 1, Slots{1}));
  const auto reader = make_shm_reader(endpoint);
  EXPECT_EQ(look_at_the_end(writer,
                            [&] {
                              EXPECT_FALSE(reader->worker_alive());
                              EXPECT_EQ(reader->poll(), Step(1));
                              EXPECT_EQ(state_of(*reader, 1), RowState::present);
                            }),
            1);
}

TEST_F(RemovedMeanwhile, H38AWorkerThatEndsIsNotTakenForOneWhoseRingWasRemoved) {
  std::optional<ChannelProducer> producer(std::in_place, endpoint);
  const auto reader = make_device_reader(endpoint);
  EXPECT_EQ(look_at_the_end(producer,
                            [&] {
                              EXPECT_FALSE(reader->worker_alive());
                              EXPECT_EQ(reader->poll(), Step(0));
                            }),
            1);
}

// The look gives the file a lease for a moment.
TEST_F(RemovedMeanwhile, H23AProcessThatLooksWhetherABufferIsUsedIsInNoOthersWay) {
  endpoint.layout = ShmLayout::wire;
  const std::string name = buffer_name(endpoint);
  test::Signal leased;
  test::ChildProcess looker([&] {
    bool looked = false;
    injection::on_point([&](std::string_view point) {
      if (point != "reclaim leased" || looked) return;
      looked = true;
      leased.raise();
      usleep(20'000);
    });
    while (!looked) {  // any process that creates a segment removes it
      const int fd = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
      ASSERT_EQ(ftruncate(fd, 4096), 0);
      ASSERT_EQ(fchmod(fd, S_ISVTX | 0600), 0);
      close(fd);
      find_segments();
    }
  });
  leased.wait();
  try {
    Segment::open(name);
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), ENOENT) << error.what();
  }
  EXPECT_EQ(looker.join(), 0);
}

// A writer then has the lock of the new file while the reader has that of the old one.
TEST_F(RemovedMeanwhile, H38RowsThatWereReadUnderALockFileThatIsGoneAreReadAgain) {
  endpoint.layout = ShmLayout::wire;
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  int locked = 0;
  injection::on_point([&](std::string_view point) {
    if (point == "read locked" && locked++ == 0) std::filesystem::remove(wire_lock_path(endpoint));
  });
  EXPECT_EQ(state_of(*reader, 1), RowState::missing);
  EXPECT_EQ(locked, 2);
  EXPECT_TRUE(std::filesystem::exists(wire_lock_path(endpoint)));
}

// The writer has the lock of the file that is gone, and the reader that of the new one.
TEST_F(RemovedMeanwhile, H38NothingIsReadWhileAWriterWritesUnderALockFileThatIsGone) {
  endpoint.layout = ShmLayout::wire;
  endpoint.timeout = Milliseconds(50);
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  int looked = 0;
  injection::on_point([&](std::string_view point) {
    if (point != "publish copying") return;
    ++looked;
    std::filesystem::remove(wire_lock_path(endpoint));
    EXPECT_THROW(state_of(*reader, 1), TimeoutError);
  });
  writer.publish(1, unmarked(Slots{1}), rows_of(endpoint.shape, 1, Slots{1}));
  injection::on_point({});
  EXPECT_EQ(looked, 1);
  EXPECT_EQ(state_of(*reader, 1), RowState::unverified);
}

}  // namespace
}  // namespace moetap
