// Processes that create, remove and adopt segments of one name at the same time.
#include <moetap/error.h>
#include <moetap/segments.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "ipc/internal/claim.h"
#include "ipc/internal/segment.h"
#include "test/ipc/child_process.h"
#include "test/ipc/own_shared_memory.h"
#include "test/ipc/segment_test.h"
#include "test/ipc/shared_object.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::kBytes;
using test::kFarTooMuch;
using test::Signal;

class SegmentRaces : public test::SegmentTest {
 protected:
  // Enough to stop a process in each of the few places that matter many times.
  static constexpr int kStops = 1000;

  // Wherever it is. False if it has ended.
  static bool stop(const ChildProcess& process) {
    kill(process.pid(), SIGSTOP);
    int status = 0;
    return waitpid(process.pid(), &status, WUNTRACED) == process.pid() && WIFSTOPPED(status);
  }

  static bool can_be_claimed(const std::string& name) {
    const int fd = shm_open(name.c_str(), O_RDWR, 0);
    if (fd < 0) return true;
    const bool can = try_claim_unnamed(fd, Role::owner, name);
    close(fd);
    return can;
  }

  const test::SharedObject<std::atomic<int>> shared_count;
  std::atomic<int>& count = *shared_count;  // of what a test counts in several processes
};

// Some of them fail for want of room right after they took the name, some come when a leftover is
// there, some while another is half-way.
TEST_F(SegmentRaces, H22OfManyThatStartAtOnceOneOwnsTheName) {
  constexpr int kProcesses = 6;
  for (int round = 0; round < 60; ++round) {
    if (round % 2 == 0) leave_behind(kBytes);
    Signal go;
    Signal tried;
    Signal finish;
    std::deque<ChildProcess> children;
    count = 0;
    for (int i = 0; i < kProcesses; ++i) {
      children.emplace_back([&, i] {
        go.wait();
        std::optional<Segment> owned;
        try {
          owned = Segment::create(name, i % 3 == 0 ? kFarTooMuch : kBytes);
          ++count;
        } catch (const OwnedError&) {
        } catch (const SystemError&) {
          EXPECT_EQ(i % 3, 0);
        }
        tried.raise();
        finish.wait();
        if (owned) {
          EXPECT_EQ(Segment::open(name).owner_pid(), getpid());
        }
      });
    }
    for (int i = 0; i < kProcesses; ++i) go.raise();
    for (int i = 0; i < kProcesses; ++i) tried.wait();
    EXPECT_LE(count, 1);
    if (count == 1) {
      EXPECT_TRUE(Segment::open(name).owner_alive());
    }
    for (int i = 0; i < kProcesses; ++i) finish.raise();
    for (auto& child : children) ASSERT_EQ(child.join(), 0) << "round " << round;
  }
}

// The other process is stopped at some point of its attempt, now and then between opening the
// segment that the name led to and claiming it, which is no longer the one that the name leads to
// when it goes on. There is a living owner all the time.
TEST_F(SegmentRaces, H22NobodyOwnsASegmentThatLostItsName) {
  std::optional<Segment> owned = Segment::create(name, kBytes);
  ChildProcess other([&] {
    while (!HasFailure()) EXPECT_THROW(Segment::create_or_adopt(name, kBytes), OwnedError);
  });
  for (int i = 0; i < kStops; ++i) {
    ASSERT_TRUE(stop(other)) << "it owned the segment, round " << i;
    owned.reset();
    owned = Segment::create(name, kBytes);
    kill(other.pid(), SIGCONT);
    usleep(static_cast<useconds_t>(i % 50));
  }
}

// As above, but the other process removes leftovers, of which there is one when it looks. In a
// /dev/shm where no other process does so, if there may be one: another program's removal of the
// leftover would hide what is shown here.
TEST_F(SegmentRaces, H23NobodyRemovesASegmentThatTookALeftoversName) {
  const std::string ours = "/moetap_" + endpoint.instance + "_0";
  const bool alone = test::can_mount_shared_memory();
  ChildProcess all([&] {
    if (alone) {
      ASSERT_TRUE(test::mount_own_shared_memory("size=16m"));
    }
    ChildProcess other([&] {
      for (;; ++count) {
        close(shm_open(ours.c_str(), O_CREAT | O_RDWR, 0600));
        reclaim(ours);
      }
    });
    for (int i = 0; i < kStops; ++i) {
      usleep(static_cast<useconds_t>(i % 50));
      ASSERT_TRUE(stop(other));
      std::optional<Segment> owned;
      if (can_be_claimed(ours)) owned = Segment::create(ours, kBytes);
      kill(other.pid(), SIGCONT);
      if (!owned)
        continue;  // it was about to remove the leftover, and no process would come between
      const int seen = count;
      for (int waited = 0; count < seen + 2; ++waited) {
        ASSERT_LT(waited, 10 * test::kPatienceMs);
        usleep(100);
      }
      ASSERT_TRUE(std::filesystem::exists("/dev/shm" + ours)) << "round " << i;
    }
  });
  EXPECT_EQ(all.join(), 0);
}

// An engine whose instance has a new name at each start would fill /dev/shm.
TEST_F(SegmentRaces, H23LeftoversOfOurOtherNamesAreRemovedAndNothingElse) {
  const auto left = [&](const char* kind) { return "/moetap_" + endpoint.instance + kind; };
  const auto exists = [](const std::string& n) { return std::filesystem::exists("/dev/shm" + n); };
  leave_behind(left("_dead"), kBytes);
  leave_behind("/other_" + endpoint.instance + "_dead", kBytes);
  const Segment living = Segment::create(left("_living"), kBytes);
  close(shm_open(left("_empty").c_str(), O_CREAT | O_RDWR, 0600));  // killed before it had a size
  const Segment segment = Segment::create(name, kBytes);
  EXPECT_TRUE(gone(left("_dead")));
  EXPECT_TRUE(exists("/other_" + endpoint.instance + "_dead"));
  EXPECT_TRUE(exists(left("_living")));
  EXPECT_TRUE(gone(left("_empty")));
  if (geteuid() != 0) return;  // only root can give a file away
  // Given away before it has a name by which anybody would remove it.
  const std::string strange = "/other_" + endpoint.instance + "_strange";
  leave_behind(strange, kBytes);
  ASSERT_EQ(chown(("/dev/shm" + strange).c_str(), 65534, 65534), 0);
  std::filesystem::rename("/dev/shm" + strange, "/dev/shm" + left("_strange"));
  Segment::create(name + "_2", kBytes);
  EXPECT_TRUE(exists(left("_strange")));
}

// Someone who removes leftovers is not the owner of what it removes.
TEST_F(SegmentRaces, H22AnUnnamedClaimIsWaitedFor) {
  leave_behind(kBytes);
  Signal claimed;
  Signal go;
  ChildProcess sweeping([&] {
    const int fd = shm_open(name.c_str(), O_RDWR, 0);
    EXPECT_TRUE(try_claim_unnamed(fd, Role::owner, name));
    claimed.raise();
    go.wait();
    usleep(10'000);  // the other one meets the claim
    shm_unlink(name.c_str());
    close(fd);
  });
  claimed.wait();
  EXPECT_FALSE(Segment::open(name).owner_alive());
  go.raise();
  const Segment segment = Segment::create(name, kBytes);
  EXPECT_EQ(Segment::open(name).owner_pid(), getpid());
  EXPECT_EQ(sweeping.join(), 0);
}

}  // namespace
}  // namespace moetap
