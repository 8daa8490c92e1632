// What find_segments() says of segments, and what reclaim() removes.
#include "ipc/segment/leftovers.h"

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/segments.h>

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
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/claim.h"
#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/table/wire_lock.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/own_shared_memory.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

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

  // Leaves this user's segment `name`. One that begins as ours do is removed by any process
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
  // What is not removed until it is given the name of one of ours.
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
  {
    const ChannelConsumer consumer(endpoint);
    const auto of_ring = found(ring);
    ASSERT_TRUE(of_ring);
    EXPECT_EQ(of_ring->kind, Kind::ring);
    EXPECT_EQ(of_ring->owner_pid, worker.pid());
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
}

// A vLLM process makes no claim, so its use shows only in what it has open.
TEST_F(LeftoversTest, H23ADeadWorkersWireBufferGoesWhenNoProcessUsesItAnyMore) {
  endpoint.layout = ShmLayout::wire;
  const std::string name = buffer_name(endpoint);
  Signal made;
  Signal opened;
  Signal mapped;
  Signal unmap;
  ChildProcess worker([&] {
    const ShmWriter writer(endpoint);
    made.raise();
    pause();
  });
  made.wait();
  ChildProcess vllm([&] {
    const int fd = shm_open(name.c_str(), O_RDONLY, 0);
    opened.raise();
    unmap.wait();
    void* const memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    mapped.raise();
    unmap.wait();
    munmap(memory, 4096);
    mapped.raise();
    unmap.wait();
  });
  opened.wait();
  worker.kill();
  for (int use = 0; use < 2; ++use) {
    EXPECT_EQ(found(name)->owner, Owner::unknown);
    EXPECT_FALSE(reclaim(name));
    remove_leftovers();
    EXPECT_TRUE(exists(name));
    unmap.raise();
    mapped.wait();
  }
  const Segment other = Segment::create("/moetap_" + endpoint.instance + "_other_0", 4096);
  EXPECT_TRUE(gone(name));
  unmap.raise();
}

// It has no mark of ours, and may be a worker's that is just being started.
TEST_F(LeftoversTest, H23AWireBufferThatVllmMadeStays) {
  endpoint.layout = ShmLayout::wire;
  make_file(buffer_name(endpoint), 4096);
  EXPECT_EQ(found(buffer_name(endpoint))->owner, Owner::unknown);
  EXPECT_FALSE(reclaim(buffer_name(endpoint)));
  EXPECT_TRUE(exists(buffer_name(endpoint)));
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

// A lease (F_SETLEASE) of its owner's keeps processes that open the file waiting, for 45 s as a
// rule.
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
    EXPECT_THROW(WireLock{lock}, MismatchError);
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
    // It is in no other's way.
    make_file(ring, 1);
    const Segment other = Segment::create("/moetap_" + endpoint.instance + "_other_0", 4096);
    EXPECT_FALSE(exists(ring));
    EXPECT_TRUE(exists(buffer));
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LeftoversTest, H23ADeadWorkersBufferGoes) {
  ChildProcess dead([&] {
    const ShmWriter writer(endpoint);
    _exit(0);
  });
  ASSERT_EQ(dead.join(), 0);
  reclaim(buffer);  // or another process on this machine has, in between
  EXPECT_TRUE(gone(buffer));
  EXPECT_FALSE(reclaim(buffer));
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
    test::BufferLock lock(endpoint);
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
  test::BufferLock lock(endpoint);
  EXPECT_FALSE(lock.try_lock());
  const Segment opened = Segment::open(ring);
  worker.kill();
  EXPECT_FALSE(opened.owner_alive());
  EXPECT_EQ(opened.peer_pid(), 0);
  EXPECT_TRUE(lock.try_lock());
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
