// What find_segments() says of segments, and what reclaim() removes.
#include <moetap/channel.h>
#include <moetap/error.h>
#include <moetap/file_lock.h>
#include <moetap/readers.h>
#include <moetap/segment.h>
#include <moetap/segments.h>
#include <moetap/shm_writer.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/internal/claim.h"
#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/own_shared_memory.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;
using test::ChildProcess;
using test::Signal;
using Kind = SegmentInfo::Kind;
using Owner = SegmentInfo::Owner;

class LeftoversTest : public test::ShmTest {
 protected:
  static std::optional<SegmentInfo> found(const std::string& name) {
    for (SegmentInfo& info : find_segments()) {
      if (info.name == name) return std::move(info);
    }
    return std::nullopt;
  }
  static bool exists(const std::string& name) { return std::filesystem::exists("/dev/shm" + name); }
  const std::string buffer = buffer_name(endpoint);
  const std::string ring = ring_name(endpoint);

  // Leaves this user's segment `name` behind. One that begins as ours do is removed by any process
  // on this machine that creates another, at any moment.
  static void make_file(const std::string& name, std::size_t bytes) {
    const int fd = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    close(fd);
  }
  static bool is_claimed(const std::string& name) {
    const int fd = shm_open(name.c_str(), O_RDWR, 0);
    if (fd < 0) return false;
    const bool claimed = !try_claim_unnamed(fd, Role::owner, name);
    close(fd);
    return claimed;
  }
  // What nobody removes until it is given the name of one of ours.
  const std::string unnamed = "/other_" + endpoint.instance + "_unnamed";
  void name_it(const std::string& name) const {
    std::filesystem::rename("/dev/shm" + unnamed, "/dev/shm" + name);
  }
};

TEST_F(LeftoversTest, SaysWhoHasWhatAndHowMuch) {
  Signal made;
  ChildProcess worker([&] {
    const ShmWriter writer(endpoint);
    const ChannelProducer producer(endpoint);
    Endpoint wire = endpoint;
    wire.layout = ShmLayout::wire;
    const ShmWriter wire_writer(wire);
    made.raise();
    pause();
  });
  made.wait();
  const auto shm = found(buffer);
  ASSERT_TRUE(shm);
  EXPECT_EQ(shm->kind, Kind::shm);
  EXPECT_EQ(shm->owner, Owner::alive);
  EXPECT_EQ(shm->owner_pid, worker.pid());
  EXPECT_EQ(shm->user, geteuid());
  EXPECT_EQ(shm->bytes, native_bytes(endpoint));
  EXPECT_EQ(shm->lock_file, lock_path(endpoint));
  {
    const ChannelConsumer consumer(endpoint);
    const auto of_ring = found(ring);
    ASSERT_TRUE(of_ring);
    EXPECT_EQ(of_ring->kind, Kind::ring);
    EXPECT_EQ(of_ring->owner_pid, worker.pid());
    EXPECT_TRUE(of_ring->lock_file.empty());
  }
  Endpoint wire = endpoint;
  wire.layout = ShmLayout::wire;
  const auto of_wire = found(buffer_name(wire));
  ASSERT_TRUE(of_wire);
  EXPECT_EQ(of_wire->kind, Kind::wire);
  EXPECT_EQ(of_wire->owner, Owner::alive);
  for (const std::string& name : {buffer, ring, buffer_name(wire)}) {
    EXPECT_FALSE(reclaim(name));
    EXPECT_TRUE(exists(name));
  }
  worker.kill();
  EXPECT_EQ(found(buffer_name(wire))->owner, Owner::unknown);
  EXPECT_FALSE(reclaim(buffer_name(wire)));
  EXPECT_TRUE(exists(buffer_name(wire)));
}

TEST_F(LeftoversTest, NamesTheReaderOfARing) {
  const ChannelProducer producer(endpoint);
  EXPECT_EQ(found(ring)->reader_pid, 0);
  Signal attached;
  ChildProcess reader([&] {
    const ChannelConsumer consumer(endpoint);
    attached.raise();
    pause();
  });
  attached.wait();
  EXPECT_EQ(found(ring)->reader_pid, reader.pid());
}

// A lease (F_SETLEASE) of its owner's keeps whoever opens the file waiting, for 45 s as a rule.
TEST_F(LeftoversTest, NobodyWaitsForTheLeaseOnAFile) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  // Of another user's first, then of our own: neither is waited for.
  for (const uid_t user : {uid_t{65534}, geteuid()}) {
    const std::string leased = fmt::format("/moetap_{}_lease{}_0", endpoint.instance, user);
    const auto lock = directory.path() / fmt::format("leased{}.lock", user);
    std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
    const mode_t mode = user == geteuid() ? 0600 : 0666;
    Signal made;
    ChildProcess owner([&] {
      ASSERT_EQ(setresuid(user, user, user), 0);
      std::signal(SIGIO, SIG_IGN);
      for (const std::string& path : {"/dev/shm" + leased, lock.string()}) {
        const int writable = open(path.c_str(), O_RDWR | O_CREAT, mode);
        ASSERT_EQ(fchmod(writable, mode), 0);
        close(writable);
        ASSERT_EQ(fcntl(open(path.c_str(), O_RDONLY), F_SETLEASE, F_RDLCK), 0);
      }
      made.raise();
      pause();
    });
    made.wait();
    std::ifstream seconds("/proc/sys/fs/lease-break-time");
    int patience = 0;
    seconds >> patience;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(found(leased)->user, user);
    EXPECT_FALSE(reclaim(leased));
    EXPECT_THROW(Segment::open(leased), MismatchError);
    EXPECT_THROW(Segment::create(leased, 4096), MismatchError);
    EXPECT_THROW(FileLock{lock}, MismatchError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(patience));
    owner.kill();
    unlink(("/dev/shm" + leased).c_str());
  }
}

// As a container's mount over the very file does.
TEST_F(LeftoversTest, H23ALeftoverThatCannotBeRemovedIsAnErrorThatNamesIt) {
  if (!test::can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  const auto under = directory.path() / "mounted";
  ChildProcess child([&] {
    ASSERT_TRUE(test::mount_own_shared_memory("size=1m"));
    std::ofstream(under) << "left";
    ASSERT_EQ(chmod(under.c_str(), 0600), 0);
    make_file(buffer, 0);
    ASSERT_EQ(mount(under.c_str(), ("/dev/shm" + buffer).c_str(), nullptr, MS_BIND, nullptr), 0);
    for (const std::string& message :
         {test::message_of<SystemError>([&] { Segment::create(buffer, 4096); }),
          test::message_of<SystemError>([&] { reclaim(buffer); })}) {
      EXPECT_TRUE(test::contains(message, "cannot remove /dev/shm" + buffer)) << message;
    }
    // It is in nobody else's way.
    make_file(ring, 1);
    const Segment other = Segment::create("/moetap_" + endpoint.instance + "_other_0", 4096);
    EXPECT_FALSE(exists(ring));
    EXPECT_TRUE(exists(buffer));
  });
  EXPECT_EQ(child.join(), 0);
}

// A worker that was killed leaves both; an engine with a new instance name at each start would
// fill the runtime directory too.
TEST_F(LeftoversTest, H23ADeadWorkersBufferGoesWithItsLockFile) {
  ChildProcess dead([&] {
    const ShmWriter writer(endpoint);
    _exit(0);
  });
  ASSERT_EQ(dead.join(), 0);
  reclaim(buffer);  // or another process on this machine has, in between
  EXPECT_TRUE(gone(buffer));
  EXPECT_FALSE(std::filesystem::exists(lock_path(endpoint)));
  EXPECT_FALSE(reclaim(buffer));
}

// Its owner died after the new one had looked for leftovers: as good as of a name that is not
// looked for.
TEST_F(LeftoversTest, H23WhoTakesADeadWorkersNameRemovesItsLockFile) {
  const fs::path lock = lock_path(endpoint).parent_path() / lock_file_name(unnamed.substr(1));
  make_file(unnamed, native_bytes(endpoint));
  std::ofstream(lock).close();
  const int fd = shm_open(unnamed.c_str(), O_RDWR, 0);
  ASSERT_EQ(pwrite(fd, lock.c_str(), lock.native().size(), offsetof(ShmControl, lock_path)),
            std::ssize(lock.native()));
  close(fd);
  const Segment taken = Segment::create(unnamed, native_bytes(endpoint));
  EXPECT_FALSE(fs::exists(lock));
}

// Killed between the making of the lock file and the publication of its identity.
TEST_F(LeftoversTest, H23ALockFileWithoutAnIdentityYetGoesToo) {
  std::ofstream(lock_path(endpoint)).close();
  make_file(unnamed, native_bytes(endpoint));
  const int fd = shm_open(unnamed.c_str(), O_RDWR, 0);
  const std::string path = lock_path(endpoint).string();
  ASSERT_EQ(pwrite(fd, path.c_str(), path.size(), offsetof(ShmControl, lock_path)),
            std::ssize(path));
  close(fd);
  name_it(buffer);
  reclaim(buffer);
  EXPECT_TRUE(gone(buffer));
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Of two containers, say, each with a /dev/shm of its own, which share the directory for lock
// files.
TEST_F(LeftoversTest, H23AnotherSharedMemoryThatSharesTheDirectoryKeepsItsLockFiles) {
  if (!test::can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  const auto in_another = [&](auto body) {
    ChildProcess other([&] {
      ASSERT_TRUE(test::mount_own_shared_memory("size=16m"));
      body();
    });
    EXPECT_EQ(other.join(), 0);
  };
  const ShmWriter writer(endpoint);
  const fs::path lock = lock_path(endpoint);
  in_another([&] {
    EXPECT_FALSE(exists(buffer));
    EXPECT_TRUE(find_lone_lock_files().empty());
    EXPECT_FALSE(reclaim_lock_file(lock));
    EXPECT_FALSE(exists(buffer)) << "nothing is made of what is not there";
    const ShmWriter of_the_same_name(endpoint);
    EXPECT_NE(lock_path(endpoint), lock);
  });
  in_another([&] {
    ChildProcess dead([&] {
      const ShmWriter of_the_same_name(endpoint);
      _exit(0);
    });
    ASSERT_EQ(dead.join(), 0);
    EXPECT_TRUE(reclaim(buffer));
    EXPECT_FALSE(fs::exists(lock_path(endpoint)));
  });
  EXPECT_TRUE(fs::exists(lock));
  EXPECT_EQ(make_shm_reader(endpoint)->last_step(), 0u);
}

// Somebody removed the segment by hand, and then its worker died; or it closed, since what it does
// not own any more it leaves.
TEST_F(LeftoversTest, H23ALockFileWithoutASegmentIsRemoved) {
  for (const bool is_killed : {true, false}) {
    ChildProcess worker([&] {
      const ShmWriter writer(endpoint);
      fs::remove("/dev/shm" + buffer);
      if (is_killed) _exit(0);
    });
    ASSERT_EQ(worker.join(), 0);
    const fs::path lock = lock_path(endpoint);
    ASSERT_TRUE(fs::exists(lock));
    EXPECT_EQ(find_lone_lock_files(), std::vector{lock});
    if (is_killed) {
      EXPECT_TRUE(reclaim_lock_file(lock));
    } else {
      Segment::create("/other_" + endpoint.instance + "_next", 4096);
    }
    EXPECT_FALSE(fs::exists(lock));
    EXPECT_FALSE(exists(buffer));
    EXPECT_FALSE(reclaim_lock_file(lock));
  }
}

TEST_F(LeftoversTest, H23OnlyLockFilesWithoutASegmentAreRemoved) {
  const ShmWriter writer(endpoint);
  const fs::path living = lock_path(endpoint);
  const fs::path directory_of_locks = living.parent_path();
  const fs::path precious = directory_of_locks / "precious.lock";
  const fs::path foreign = directory_of_locks / lock_file_name("other_" + endpoint.instance);
  const fs::path old = directory_of_locks / ("moetap_" + endpoint.instance + "_1.lock");
  const fs::path link = directory_of_locks / lock_file_name("moetap_" + endpoint.instance + "_2");
  for (const fs::path& file : {precious, foreign, old}) std::ofstream(file).close();
  fs::create_symlink(precious, link);
  EXPECT_TRUE(find_lone_lock_files().empty());
  for (const fs::path& file : {living, precious, foreign, old, link}) {
    EXPECT_FALSE(reclaim_lock_file(file)) << file;
    EXPECT_TRUE(fs::exists(file)) << file;
  }
  if (geteuid() != 0) return;  // only root can give a file away
  const fs::path strange =
      directory_of_locks / lock_file_name("moetap_" + endpoint.instance + "_3");
  std::ofstream(strange).close();
  ASSERT_EQ(chown(strange.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(find_lone_lock_files().empty());
  EXPECT_FALSE(reclaim_lock_file(strange));
}

TEST_F(LeftoversTest, AWorkerWhoseNameWasTakenAwayLeavesTheNextOnesLockFile) {
  std::optional<ShmWriter> first(std::in_place, endpoint);
  fs::remove("/dev/shm" + buffer);
  const ShmWriter second(endpoint);
  first.reset();
  EXPECT_TRUE(fs::exists(lock_path(endpoint)));
  EXPECT_EQ(make_shm_reader(endpoint)->last_step(), 0u);
}

// Wherever the one that collects is when it is stopped, and whichever of the two came first.
TEST_F(LeftoversTest, H23ALockFileThatAWorkerIsMakingIsNotRemoved) {
  const fs::path lock = lock_path(endpoint);
  const test::SharedObject<std::atomic<int>> rounds;
  ChildProcess collecting([&] {
    for (;; ++*rounds) {
      std::ofstream(lock).close();
      reclaim_lock_file(lock);
    }
  });
  for (int i = 0; i < 500; ++i) {
    usleep(static_cast<useconds_t>(i % 50));
    kill(collecting.pid(), SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(collecting.pid(), &status, WUNTRACED), collecting.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    std::optional<ShmWriter> writer;
    if (!is_claimed(buffer)) writer.emplace(endpoint);  // else by it, just now
    const int seen = *rounds;
    kill(collecting.pid(), SIGCONT);
    if (!writer) continue;
    for (int waited = 0; *rounds < seen + 2; ++waited) {
      ASSERT_LT(waited, 10 * test::kPatienceMs);
      usleep(100);
    }
    ASSERT_EQ(make_shm_reader(endpoint)->last_step(), 0u) << "round " << i;
  }
}

// What a segment says is not trusted to name what may be removed.
TEST_F(LeftoversTest, NoOtherFileIsRemovedForWhatASegmentSays) {
  const auto precious = directory.path() / "precious.lock";
  std::ofstream(precious) << "precious";
  const auto other = directory.path() / lock_file_name(buffer.substr(1));
  std::ofstream(other) << "another file of the name";
  for (const auto& path : {precious, other}) {
    ChildProcess dead([&] {
      const ShmWriter writer(endpoint);
      const Segment segment = Segment::open(buffer);
      auto& control = *reinterpret_cast<ShmControl*>(segment.bytes().data());
      std::strcpy(control.lock_path, path.c_str());
      _exit(0);
    });
    ASSERT_EQ(dead.join(), 0);
    reclaim(buffer);
    EXPECT_TRUE(gone(buffer));
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  }
}

// Nor if the segment gives no identity, or that very file's.
TEST_F(LeftoversTest, OnlyAFileOfTheOneNameAndOfThisUserIsRemovedForWhatASegmentSays) {
  const auto precious = directory.path() / "precious.lock";
  std::ofstream(precious).close();
  const auto strange = directory.path() / lock_file_name(buffer.substr(1));
  std::ofstream(strange).close();
  const bool is_root = geteuid() == 0;  // only root can give a file away
  if (is_root) {
    ASSERT_EQ(chown(strange.c_str(), 65534, 65534), 0);
  }
  struct stat status {};
  ASSERT_EQ(stat(precious.c_str(), &status), 0);
  const FileLock::File itself{status.st_dev, status.st_ino};
  for (const auto& [path, file] :
       {std::pair(precious, FileLock::File{}), std::pair(precious, itself),
        std::pair(is_root ? strange : precious, FileLock::File{})}) {
    ChildProcess dead([&] {
      const ShmWriter writer(endpoint);
      const Segment segment = Segment::open(buffer);
      auto& control = *reinterpret_cast<ShmControl*>(segment.bytes().data());
      std::strcpy(control.lock_path, path.c_str());
      control.lock_file = file;
      _exit(0);
    });
    ASSERT_EQ(dead.join(), 0);
    reclaim(buffer);
    EXPECT_TRUE(gone(buffer));
    EXPECT_TRUE(fs::exists(path)) << path;
  }
}

TEST_F(LeftoversTest, H23ForeignNamesAreNotTouched) {
  const std::string foreign = "/other_" + endpoint.instance + "_0";
  make_file(foreign, 4096);
  EXPECT_FALSE(found(foreign));
  EXPECT_FALSE(reclaim(foreign));
  EXPECT_TRUE(exists(foreign));
  EXPECT_FALSE(reclaim("/moetap_" + endpoint.instance + "_none"));
  if (geteuid() != 0) return;  // only root can give a file away
  const std::string strange = "/moetap_" + endpoint.instance + "_strange";
  make_file(unnamed, 4096);
  ASSERT_EQ(chown(("/dev/shm" + unnamed).c_str(), 65534, 65534), 0);
  name_it(strange);
  EXPECT_EQ(found(strange)->owner, Owner::unknown);
  EXPECT_EQ(found(strange)->user, 65534u);
  EXPECT_FALSE(reclaim(strange));
  EXPECT_TRUE(exists(strange));
}

TEST_F(LeftoversTest, H23WhatAStageOrPartLeftGoesToo) {
  endpoint.stage = 2;
  endpoint.part = 1;
  ChildProcess dead([&] {
    const ShmWriter writer(endpoint);
    const ChannelProducer producer(endpoint);
    _exit(0);
  });
  ASSERT_EQ(dead.join(), 0);
  for (const std::string& name : {buffer_name(endpoint), ring_name(endpoint)}) {
    reclaim(name);
    EXPECT_TRUE(gone(name));
  }
  EXPECT_FALSE(std::filesystem::exists(lock_path(endpoint)));
}

// Killed before it could give its segment a size.
TEST_F(LeftoversTest, H23AnEmptyLeftoverIsRemoved) {
  make_file(buffer, 0);
  reclaim(buffer);
  EXPECT_TRUE(gone(buffer));
}

// Python's multiprocessing forks; such a child may outlive the worker by far.
TEST_F(LeftoversTest, H23AChildThatOutlivesItsWorkerKeepsNothingOfItAlive) {
  Signal forked;
  Signal finish;
  const test::SharedObject<pid_t> grandchild;
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    const ChannelProducer producer(endpoint);
    FileLock lock(directory.path() / "held.lock");
    lock.lock();
    Segment peer = Segment::open(ring);
    peer.claim_peer();
    *grandchild = fork();
    if (*grandchild == 0) {
      forked.raise();
      finish.wait();
      _exit(0);
    }
    pause();
  });
  forked.wait();
  EXPECT_EQ(found(buffer)->owner_pid, worker.pid());
  EXPECT_FALSE(FileLock(directory.path() / "held.lock").try_lock());
  const Segment opened = Segment::open(ring);
  worker.kill();
  EXPECT_FALSE(opened.owner_alive());
  EXPECT_EQ(opened.peer_pid(), 0);
  EXPECT_TRUE(FileLock(directory.path() / "held.lock").try_lock());
  const ShmWriter next(endpoint);
  EXPECT_EQ(found(buffer)->owner_pid, getpid());
  EXPECT_EQ(kill(*grandchild, 0), 0) << "it should still be there";
  finish.raise();
}

// The child has no more descriptors than it has: it can only let go.
TEST_F(LeftoversTest, AChildWithoutRoomForDescriptorsKeepsNothingAliveEither) {
  Signal forked;
  Signal finish;
  ChildProcess worker([&] {
    const ShmWriter writer(endpoint);
    while (dup(0) >= 0) {
    }
    if (fork() == 0) {
      forked.raise();
      finish.wait();
      _exit(0);
    }
    pause();
  });
  forked.wait();
  const Segment opened = Segment::open(buffer);
  worker.kill();
  EXPECT_FALSE(opened.owner_alive());
  finish.raise();
}

// As above, through exec.
TEST_F(LeftoversTest, H23AProgramThatAWorkerStartsGetsNoneOfItsDescriptors) {
  Signal started;
  const test::SharedObject<pid_t> program;
  ChildProcess worker([&] {
    const ShmWriter writer(endpoint);
    const ChannelProducer producer(endpoint);
    const pid_t pid = vfork();  // no handler runs
    if (pid == 0) {
      execlp("sleep", "sleep", "300", nullptr);
      _exit(127);
    }
    *program = pid;
    started.raise();
    pause();
  });
  started.wait();
  const Segment opened = Segment::open(ring);
  EXPECT_TRUE(opened.owner_alive());
  worker.kill();
  // The worker goes on a moment before exec closes the program's descriptors.
  for (int waited = 0; opened.owner_alive() && waited < test::kPatienceMs; ++waited) usleep(1000);
  EXPECT_FALSE(opened.owner_alive());
  EXPECT_EQ(kill(*program, SIGKILL), 0) << "it should still be there";
}

// Several starters find the same leftovers; each is removed once, and no living owner's ever.
TEST_F(LeftoversTest, H23ManyThatReclaimAtOnceRemoveEachLeftoverOnceAndNoLivingOnes) {
  constexpr int kProcesses = 4;
  constexpr int kLeft = 50;
  const auto left = [&](int i) { return "/moetap_" + endpoint.instance + "_" + std::to_string(i); };
  const ShmWriter living(endpoint);
  for (int i = 1; i <= kLeft; ++i) make_file(left(i), 4096);
  const test::SharedObject<std::atomic<int>> removed;
  Signal go;
  std::deque<ChildProcess> children;
  for (int c = 0; c < kProcesses; ++c) {
    children.emplace_back([&] {
      go.wait();
      for (int i = 0; i <= kLeft; ++i) *removed += reclaim(left(i));
    });
  }
  for (int c = 0; c < kProcesses; ++c) go.raise();
  for (ChildProcess& child : children) EXPECT_EQ(child.join(), 0);
  EXPECT_LE(*removed, kLeft);  // fewer if another program on this machine helped
  for (int i = 1; i <= kLeft; ++i) EXPECT_TRUE(gone(left(i)));
  EXPECT_TRUE(exists(buffer));
}

}  // namespace
}  // namespace moetap
