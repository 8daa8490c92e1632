#include "test/ipc/segment_test.h"

#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/internal/segment.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::message_of;
using test::Signal;

using test::kBytes;
using test::kFarTooMuch;

using test::SegmentTest;

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

TEST_F(SegmentTest, IsZeroFilledOfTheSizeAskedForAndSharedByItsName) {
  const Segment created = Segment::create(name, kBytes);
  EXPECT_EQ(created.name(), name);
  ASSERT_EQ(created.bytes().size(), kBytes);
  EXPECT_TRUE(all_zero(created.bytes()));
  const Segment opened = Segment::open(name);
  ASSERT_EQ(opened.bytes().size(), kBytes);
  created.bytes()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(opened.bytes()[kBytes - 1], std::byte{7});
  struct stat status {};
  ASSERT_EQ(stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SegmentTest, H23EveryPageIsBackedBeforeAnyoneTouchesIt) {
  const Segment segment = Segment::create(name, kBytes);
  struct stat status {};
  ASSERT_EQ(stat(file().c_str(), &status), 0);
  EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, kBytes);
}

TEST_F(SegmentTest, H23NoRoomIsAnErrorThatNamesBytesNeededAndFreeAndLeavesNothing) {
  const std::string message = message_of<SystemError>([&] { Segment::create(name, kFarTooMuch); });
  EXPECT_TRUE(contains(message, std::to_string(kFarTooMuch))) << message;
  EXPECT_TRUE(contains(message, "bytes free")) << message;
  EXPECT_TRUE(contains(message, "/dev/shm")) << message;
  EXPECT_FALSE(std::filesystem::exists(file()));
}

// A signal interrupts a system call that reserves pages, which then has reserved none.
TEST_F(SegmentTest, H23SignalsOnlyDelayItsCreation) {
  ChildProcess child([&] {
    struct sigaction count {};
    count.sa_handler = [](int) {};
    sigaction(SIGALRM, &count, nullptr);
    const itimerval often{{0, 200}, {0, 200}};  // microseconds
    setitimer(ITIMER_REAL, &often, nullptr);
    const Segment segment = Segment::create(name, std::size_t{200} << 20);
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    EXPECT_EQ(segment.bytes().size(), std::size_t{200} << 20);
    struct stat status {};
    EXPECT_EQ(stat(file().c_str(), &status), 0);
    EXPECT_GE(status.st_blocks * 512, std::int64_t{200} << 20) << "not all of it is there";
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGALRM), 0);
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(SegmentTest, AnAttachWithoutSharedMemorySaysWhatToDo) {
  ChildProcess child([&] {
    // A directory of its own over /dev, which has no shm.
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", "/dev", "tmpfs", 0, "size=1m") != 0) {
      return;  // not allowed here
    }
    for (const std::string& text :
         {message_of<SystemError>([&] { (void)make_device_reader(endpoint); }),
          message_of<SystemError>([&] { Segment::create(name, kBytes); })}) {
      EXPECT_TRUE(contains(text, "no /dev/shm here: mount it")) << text;
    }
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(SegmentTest, AnotherUsersSegmentIsAnErrorThatSaysWhatToDo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's";
  const Segment segment = Segment::create(name, kBytes);
  ASSERT_EQ(chown(file().c_str(), 65534, 65534), 0);
  for (const std::string& text :
       {message_of<MismatchError>([&] { Segment::open(name); }),
        message_of<MismatchError>([&] { Segment::create(name, kBytes); })}) {
    EXPECT_TRUE(contains(text, "another user's, 65534, not this process's user 0")) << text;
    EXPECT_TRUE(contains(text, "run both ends as one user")) << text;
  }
  ASSERT_EQ(chown(file().c_str(), 0, 0), 0);
}

TEST_F(SegmentTest, H22SecondOwnerIsAnErrorThatNamesTheFirst) {
  Signal created;
  Signal finish;
  ChildProcess first([&] {
    const Segment segment = Segment::create(name, kBytes);
    created.raise();
    finish.wait();
    EXPECT_TRUE(all_zero(segment.bytes()));
  });
  created.wait();
  for (const std::size_t bytes : {kBytes, 2 * kBytes}) {
    const std::string message = message_of<OwnedError>([&] { Segment::create(name, bytes); });
    EXPECT_TRUE(contains(message, std::to_string(first.pid()))) << message;
    message_of<OwnedError>([&] { Segment::create_or_adopt(name, bytes); });
  }
  const Segment opened = Segment::open(name);
  EXPECT_TRUE(opened.owner_alive());
  EXPECT_EQ(opened.owner_pid(), first.pid());
  finish.raise();
  EXPECT_EQ(first.join(), 0);
  EXPECT_FALSE(opened.owner_alive());
  EXPECT_EQ(opened.owner_pid(), 0);
}

TEST_F(SegmentTest, OwnerIsExclusiveInOneProcessToo) {
  const Segment first = Segment::create(name, kBytes);
  EXPECT_EQ(first.owner_pid(), getpid());
  EXPECT_THROW(Segment::create(name, kBytes), OwnedError);
}

TEST_F(SegmentTest, H23LeftoverOfADeadOwnerIsReclaimedAndItsReadersKeepTheOldOne) {
  leave_behind(kBytes);
  const Segment old = Segment::open(name);
  EXPECT_FALSE(old.owner_alive());
  const Segment fresh = Segment::create(name, kBytes);
  EXPECT_TRUE(all_zero(fresh.bytes()));
  EXPECT_EQ(old.bytes()[0], std::byte{1});
  EXPECT_FALSE(old.owner_alive());
  EXPECT_EQ(Segment::open(name).owner_pid(), getpid());
}

TEST_F(SegmentTest, AdoptsALeftoverOfTheRightSizeAndReplacesAnother) {
  leave_behind(kBytes);
  {
    const Segment adopted = Segment::create_or_adopt(name, kBytes);
    EXPECT_EQ(adopted.bytes()[0], std::byte{1});
    EXPECT_TRUE(adopted.owner_alive());
  }
  EXPECT_FALSE(std::filesystem::exists(file()));
  leave_behind(kBytes);
  const Segment replaced = Segment::create_or_adopt(name, kBytes + 1);
  ASSERT_EQ(replaced.bytes().size(), kBytes + 1);
  EXPECT_TRUE(all_zero(replaced.bytes()));
}

TEST_F(SegmentTest, H23AnAdoptedSparseSegmentIsBacked) {
  const int fd = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  const Segment adopted = Segment::create_or_adopt(name, kBytes);
  struct stat status {};
  ASSERT_EQ(fstat(fd, &status), 0);
  close(fd);
  EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, kBytes);
}

TEST_F(SegmentTest, AForkedChildOfTheOwnerDoesNotUnlinkTheName) {
  std::optional<Segment> segment = Segment::create(name, kBytes);
  ChildProcess child([&] { segment.reset(); });
  EXPECT_EQ(child.join(), 0);
  EXPECT_TRUE(std::filesystem::exists(file()));
  segment.reset();
  EXPECT_FALSE(std::filesystem::exists(file()));
}

// In PID namespaces of their own each of them is process 1.
TEST_F(SegmentTest, AChildThatHasItsParentsPidIsNotTheOwner) {
  ChildProcess outer([&] {
    if (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) return;
    if (unshare(CLONE_NEWPID) != 0) return;
    ChildProcess parent([&] {
      ASSERT_EQ(getpid(), 1);
      std::optional<Segment> segment = Segment::create(name, kBytes);
      segment->claim_peer();
      ASSERT_EQ(unshare(CLONE_NEWPID), 0);
      ChildProcess child([&] {
        EXPECT_EQ(getpid(), 1);
        EXPECT_FALSE(segment->is_owner());
        EXPECT_FALSE(segment->is_owner() && segment->has_name());
        segment.reset();
      });
      EXPECT_EQ(child.join(), 0);
      EXPECT_TRUE(segment->is_owner() && segment->has_name());
      EXPECT_TRUE(std::filesystem::exists(file()));
    });
    EXPECT_EQ(parent.join(), 0);
  });
  EXPECT_EQ(outer.join(), 0);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(SegmentTest, AnOwnerWhoseNameWasTakenAwayDoesNotUnlinkTheNextOne) {
  std::optional<Segment> first = Segment::create(name, kBytes);
  std::filesystem::remove(file());
  const Segment second = Segment::create(name, kBytes);
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(file()));
}

TEST_F(SegmentTest, OpenFailsUntilTheSegmentHasItsSize) {
  const auto code = [&] {
    try {
      Segment::open(name);
    } catch (const SystemError& error) {
      return error.code().value();
    }
    return 0;
  };
  EXPECT_EQ(code(), ENOENT);
  const int fd = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  close(fd);
  EXPECT_EQ(code(), ENOENT);
}

TEST_F(SegmentTest, AnotherUsersSegmentIsAMismatch) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const Segment segment = Segment::create(name, kBytes);
  ASSERT_EQ(chown(file().c_str(), 65534, 65534), 0);
  EXPECT_THROW(Segment::open(name), MismatchError);
  EXPECT_THROW(Segment::create(name, kBytes), MismatchError);
}

TEST_F(SegmentTest, OneThatMayNotBeOpenedIsAnotherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Segment segment = Segment::create(name, kBytes);
  ChildProcess other([&] {
    ASSERT_EQ(seteuid(65534), 0);
    for (const std::string& message :
         {message_of<MismatchError>([&] { Segment::open(name); }),
          message_of<MismatchError>([&] { Segment::create(name, kBytes); })}) {
      EXPECT_TRUE(contains(message, "another user's")) << message;
    }
  });
  EXPECT_EQ(other.join(), 0);
}

TEST_F(SegmentTest, FollowsNoLinkAndTakesNothingThatOthersMayWriteTo) {
  const std::string target = name + "_target";
  const Segment precious = Segment::create(target, kBytes);
  std::filesystem::create_symlink("/dev/shm" + target, file());
  EXPECT_THROW(Segment::open(name), MismatchError);
  EXPECT_THROW(Segment::create(name, kBytes), MismatchError);
  std::filesystem::remove(file());
  ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
  for (const std::string& message :
       {message_of<MismatchError>([&] { Segment::open(name); }),
        message_of<MismatchError>([&] { Segment::create(name, kBytes); })}) {
    EXPECT_TRUE(contains(message, "a named pipe")) << message;
  }
  std::filesystem::remove(file());
  const Segment segment = Segment::create(name, kBytes);
  for (const mode_t others : {S_IWGRP, S_IWOTH}) {
    ASSERT_EQ(chmod(file().c_str(), 0600 | others), 0);
    EXPECT_THROW(Segment::open(name), MismatchError);
    EXPECT_THROW(Segment::create(name, kBytes), MismatchError);
  }
  ASSERT_EQ(chmod(file().c_str(), 0644), 0);
  EXPECT_EQ(Segment::open(name).bytes().size(), kBytes);
}

TEST_F(SegmentTest, RefusesNamesAndSizesThatCannotBe) {
  for (const char* bad : {"", "/", "no_slash", "/a/b", "/..\n", "/a b"}) {
    EXPECT_THROW(Segment::create(bad, kBytes), ArgumentError) << bad;
    EXPECT_THROW(Segment::open(bad), ArgumentError) << bad;
  }
  EXPECT_THROW(Segment::create("/" + std::string(300, 'a'), kBytes), ArgumentError);
  EXPECT_THROW(Segment::create(name, 0), ArgumentError);
}

TEST_F(SegmentTest, MovesAndAMovedFromOneIsHarmless) {
  Segment segment = Segment::create(name, kBytes);
  {
    const Segment moved = std::move(segment);
    EXPECT_EQ(moved.bytes().size(), kBytes);
    EXPECT_TRUE(moved.owner_alive());
  }
  EXPECT_FALSE(std::filesystem::exists(file()));
  segment = Segment::create(name, kBytes);
  EXPECT_EQ(Segment::open(name).owner_pid(), getpid());
  segment = Segment::create(name + "_ring", kBytes);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(SegmentTest, H22OneProcessAtTheOtherEndUntilItDies) {
  const Segment owner = Segment::create(name, kBytes);
  EXPECT_EQ(owner.peer_pid(), 0);
  Signal claimed;
  ChildProcess first([&] {
    Segment peer = Segment::open(name);
    peer.claim_peer();
    claimed.raise();
    pause();
  });
  claimed.wait();
  EXPECT_EQ(owner.peer_pid(), first.pid());
  Segment second = Segment::open(name);
  const std::string message = message_of<OwnedError>([&] { second.claim_peer(); });
  EXPECT_TRUE(contains(message, std::to_string(first.pid()))) << message;
  first.kill();
  second.claim_peer();
  EXPECT_EQ(owner.peer_pid(), getpid());
}

}  // namespace
}  // namespace moetap
