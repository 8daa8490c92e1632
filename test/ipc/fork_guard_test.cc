// A fork at any moment of a descriptor's life, by another thread: whatever the child does, what its
// parent's objects held ends with them.

#include <moetap/directory_block_store.h>
#include <moetap/error.h>
#include <moetap/segments.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/internal/claim.h"
#include "ipc/internal/segment.h"
#include "ipc/table/wire_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/own_shared_memory.h"
#include "test/ipc/segment_test.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/temporary_directory.h"
#include "test/lib/block_store_cases.h"

namespace moetap {
namespace {

// A thread that forks whenever it is told to. The child stays until it is ended.
class Forker {
 public:
  ~Forker() {
    *turn_ = kEnd;
    thread_.join();
  }

  void start() { *turn_ = kFork; }
  bool has_forked() const { return *turn_ > 0; }  // the child is past it, too
  void end_child() const {
    kill(*turn_, SIGKILL);
    waitpid(*turn_, nullptr, 0);
  }

 private:
  static constexpr pid_t kFork = -1;
  static constexpr pid_t kEnd = -2;

  void run() const {
    for (;;) {
      while (*turn_ != kFork && *turn_ != kEnd) std::this_thread::yield();
      if (*turn_ == kEnd) return;
      *turn_ = 0;
      if (fork() == 0) {
        *turn_ = getpid();
        for (;;) pause();
      }
    }
  }

  const test::SharedObject<std::atomic<pid_t>> turn_;
  std::thread thread_{[this] { run(); }};
};

class ForkGuard : public test::SegmentTest {
 protected:
  // In a process of its own, forked before it has threads. use() makes what holds something (or
  // finds it held, by a child that is not yet past its fork) and ends it; it is done over and over
  // until there is a child, which may have been forked at any point of it.
  template <class Use, class IsFree>
  static void try_often(const Use& use, const IsFree& is_free) {
    try_often([] {}, use, is_free);
  }
  template <class Prepare, class Use, class IsFree>
  static void try_often(const Prepare& prepare, const Use& use, const IsFree& is_free) {
    test::ChildProcess process([&] {
      prepare();
      Forker forker;
      int kept = 0;
      for (int i = 0; i < kTries; ++i) {
        forker.start();
        while (!forker.has_forked()) use();
        kept += is_free() ? 0 : 1;
        forker.end_child();
      }
      EXPECT_EQ(kept, 0) << "of " << kTries << " were kept by a child";
    });
    EXPECT_EQ(process.join(), 0);
  }

  static pid_t claimant_of(const std::string& segment) {
    return Segment::open(segment).owner_pid();
  }

  static constexpr int kTries = 400;
  const test::TemporaryDirectory directory;
};

TEST_F(ForkGuard, H23AFileLockEndsWithItsObject) {
  const auto path = directory.path() / "file.lock";
  const auto lock = [&] { return WireLock(path).try_lock(); };
  try_often(lock, lock);
}

TEST_F(ForkGuard, H23TheLockOfASegmentEndsWithItsObject) {
  const Segment owner = Segment::create(name, test::kBytes);
  const auto lock = [&] {
    const Segment opened = Segment::open(name);
    return FileLock(opened.descriptor(), file()).try_lock();
  };
  try_often(lock, lock);
}

TEST_F(ForkGuard, H23TheClaimOnASegmentEndsWithItsObject) {
  // Made by another program, as far as anybody can tell, and so kept at the end.
  const int fd = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_EQ(ftruncate(fd, test::kBytes), 0);
  try_often(
      [&] {
        try {
          Segment::create_or_adopt(name, test::kBytes);
        } catch (const OwnedError&) {
        }
      },
      [&] { return claimant(fd, Role::owner) == 0; });
  close(fd);
}

TEST_F(ForkGuard, H23TheRoleAtTheOtherEndEndsWithItsObject) {
  const Segment owner = Segment::create(name, test::kBytes);
  try_often(
      [&] {
        try {
          Segment::open(name).claim_peer();
        } catch (const OwnedError&) {
        }
      },
      [&] { return owner.peer_pid() == 0; });
}

// A child that its parent was forking when it was killed has the claim until its handler has run.
// This one has none, and ends soon after it is waited for.
TEST_F(ForkGuard, H23TheClaimOfADeadProcessThatAChildIsAboutToLoseIsWaitedFor) {
  test::Signal claimed;
  test::Signal waited_for;
  test::ChildProcess owner([&] {
    const Segment segment = Segment::create(name, test::kBytes);
    if (syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
      waited_for.wait();
      usleep(20'000);
      _exit(0);
    }
    claimed.raise();
    pause();
  });
  claimed.wait();
  owner.kill();
  EXPECT_EQ(claimant_of(name), owner.pid());
  waited_for.raise();
  const Segment again = Segment::create(name, test::kBytes);
  EXPECT_TRUE(again.is_owner() && again.has_name());
}

// Who removes a leftover claims it, as any process on this machine may, but for one of another
// /dev/shm.
TEST_F(ForkGuard, H23TheClaimOfWhoRemovesALeftoverEnds) {
  const std::string left = "/moetap_" + endpoint.instance + "_left";
  std::vector<int> leftovers;
  if (!test::can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  try_often([] { ASSERT_TRUE(test::mount_own_shared_memory("size=16m")); },
            [&] {
              if (leftovers.size() == 200) return;
              leftovers.push_back(shm_open(left.c_str(), O_CREAT | O_RDWR, 0600));
              reclaim(left);
            },
            [&] {
              bool free = true;
              for (const int fd : leftovers) {
                free = try_claim(fd, Role::owner, left) && free;
                close(fd);
              }
              leftovers.clear();
              return free;
            });
}

TEST_F(ForkGuard, AHoldOfABlockEndsWithItsRelease) {
  const auto blocks = directory.path() / "blocks";
  test::put(*make_directory_block_store(blocks, test::small_store(100)), 1);
  const auto key = test::key_of(1);
  const auto file = std::filesystem::directory_iterator(blocks)->path();
  std::unique_ptr<BlockStore> store;
  try_often([&] { store = make_directory_block_store(blocks, test::small_store(100)); },
            [&] {
              if (store->hold(key)) store->release(key);
            },
            [&] { return WireLock(file).try_lock(); });
}

}  // namespace
}  // namespace moetap
