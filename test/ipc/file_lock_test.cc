// FileLock, on the file that the wire layout has for it.
#include <moetap/error.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "ipc/table/wire_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/temporary_directory.h"

namespace moetap {
namespace {

using std::chrono::milliseconds;
using test::ChildProcess;
using test::contains;
using test::message_of;
using test::Signal;

constexpr milliseconds kShort{30};

class FileLockTest : public testing::Test {
 protected:
  test::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "a.lock";
};

// A process that holds the lock until it is told to let go.
class Holder {
 public:
  Holder(const std::filesystem::path& path, bool shared)
      : child_([&, shared] {
          WireLock lock(path);
          shared ? lock.lock_shared() : lock.lock();
          held_.raise();
          release_.wait();
          lock.unlock();
          released_.raise();
          finish_.wait();
        }) {
    held_.wait();
  }
  ~Holder() { finish_.raise(); }
  void release() {
    release_.raise();
    released_.wait();
  }
  ChildProcess& child() { return child_; }

 private:
  Signal held_;
  Signal release_;
  Signal released_;
  Signal finish_;
  ChildProcess child_;
};

TEST_F(FileLockTest, ExcludesAnotherProcessUntilItLetsGo) {
  Holder other(path, false);
  WireLock lock(path);
  EXPECT_FALSE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock_shared());
  other.release();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST_F(FileLockTest, ExcludesAnotherObjectOfTheSameProcess) {
  WireLock a(path);
  WireLock b(path);
  const std::unique_lock held(a);
  EXPECT_FALSE(b.try_lock());
}

TEST_F(FileLockTest, SharersExcludeOnlyAnExclusiveOne) {
  Holder other(path, true);
  WireLock lock(path);
  {
    const std::shared_lock held(lock, std::try_to_lock);
    EXPECT_TRUE(held.owns_lock());
  }
  EXPECT_FALSE(lock.try_lock());
}

TEST_F(FileLockTest, IsReleasedWhenItsHolderDies) {
  Holder other(path, false);
  WireLock lock(path);
  EXPECT_FALSE(lock.try_lock());
  other.child().kill();
  EXPECT_TRUE(lock.try_lock_for(milliseconds(test::kPatienceMs)));
}

TEST_F(FileLockTest, WaitsForAHolderThatLetsGoInTime) {
  Holder other(path, false);
  WireLock lock(path);
  ChildProcess waiter([&] {
    WireLock mine(path);
    const auto held = lock_within(mine, milliseconds(test::kPatienceMs));
    EXPECT_TRUE(held.owns_lock());
  });
  other.release();
  EXPECT_EQ(waiter.join(), 0);
}

TEST_F(FileLockTest, H24WaitIsBoundedAndTheErrorNamesFileAndHolder) {
  Holder other(path, false);
  WireLock lock(path);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(lock.try_lock_for(kShort));
  EXPECT_FALSE(lock.try_lock_shared_for(kShort));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 2 * kShort);
  const pid_t holder = lock.holder();
  EXPECT_TRUE(holder == other.child().pid() || holder == 0) << holder;
  for (const auto& message :
       {message_of<TimeoutError>([&] { lock_within(lock, kShort); }),
        message_of<TimeoutError>([&] { lock_shared_within(lock, kShort); })}) {
    EXPECT_TRUE(contains(message, path.string())) << message;
    EXPECT_TRUE(contains(message, holder ? std::to_string(holder) : "unknown process")) << message;
  }
}

// The file system of /dev/shm is one whose locks /proc/locks always lists.
TEST_F(FileLockTest, H24HolderIsKnownWhereTheKernelListsIt) {
  // Not a name of ours, which another run could take for a leftover.
  const std::filesystem::path listed = "/dev/shm/lock_test_" + std::to_string(getpid());
  const struct Remove {
    const std::filesystem::path& path;
    ~Remove() { std::filesystem::remove(path); }
  } remove{listed};
  WireLock lock(listed);
  EXPECT_EQ(lock.holder(), 0);
  Holder other(listed, false);
  EXPECT_EQ(lock.holder(), other.child().pid());
  other.release();
  EXPECT_EQ(lock.holder(), 0);
}

TEST_F(FileLockTest, NoIncrementIsLostBetweenProcesses) {
  constexpr int kEach = 20'000;
  const test::SharedObject<long> count;
  const auto work = [&] {
    WireLock lock(path);
    for (int i = 0; i < kEach; ++i) {
      const auto held = lock_within(lock, milliseconds(test::kPatienceMs));
      const long seen = *count;
      if (i % 1000 == 0) usleep(100);  // the other one would get in between
      *count = seen + 1;
    }
  };
  ChildProcess other(work);
  work();
  EXPECT_EQ(other.join(), 0);
  EXPECT_EQ(*count, 2 * kEach);
}

TEST_F(FileLockTest, OfTheWireLayoutMakesAPrivateFile) {
  umask(0);
  WireLock lock(path);
  umask(022);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(FileLockTest, OfTheWireLayoutFollowsNoLinkAndTakesNothingButARegularFileOfThisUser) {
  const auto target = directory.path() / "target";
  std::ofstream(target) << "precious";
  std::filesystem::create_symlink(target, path);
  EXPECT_THROW(WireLock{path}, MismatchError);
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(WireLock{path}, MismatchError);
  EXPECT_THROW(WireLock{directory.path()}, MismatchError);
  EXPECT_THROW(WireLock{directory.path() / "none" / "a.lock"}, SystemError);
  if (geteuid() != 0) return;  // only root can give a file away
  ASSERT_EQ(chown(target.c_str(), 65534, 65534), 0);
  EXPECT_THROW(WireLock{target}, MismatchError);
}

}  // namespace
}  // namespace moetap
