// Limits of the system, each run into for real by a child that lowers it for itself.
#include <moetap/directory_block_store.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/segments.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/internal/system_limits.h"
#include "ipc/store/block_directory.h"
#include "ipc/system/private_memory.h"
#include "ipc/table/wire_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/own_shared_memory.h"
#include "test/ipc/segment_test.h"
#include "test/ipc/shm_test.h"
#include "test/ipc/temporary_directory.h"
#include "test/lib/block_store_cases.h"

namespace moetap {
namespace {

using test::can_mount_shared_memory;
using test::ChildProcess;
using test::contains;
using test::message_of;
using test::mount_own_shared_memory;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // a sanitizer needs more of everything than is allowed here
#else
constexpr bool kSanitized = false;
#endif

class LimitsTest : public test::SegmentTest {
 protected:
  static void lower(__rlimit_resource_t resource, rlim_t limit) {
    rlimit now{};
    ASSERT_EQ(getrlimit(resource, &now), 0);
    now.rlim_cur = limit;
    ASSERT_EQ(setrlimit(resource, &now), 0);
  }
  // The message of the error that the creation of the segment ends with, which leaves nothing.
  std::string refusal(std::size_t bytes) const {
    const std::string message = message_of<SystemError>([&] { Segment::create(name, bytes); });
    EXPECT_FALSE(std::filesystem::exists(file()));
    return message;
  }
};

TEST_F(LimitsTest, OpenFilesOfTheProcess) {
  ChildProcess child([&] {
    lower(RLIMIT_NOFILE, 64);
    std::vector<int> open;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) open.push_back(fd);
    // However few are left it is an error that says so, and no endless attempt.
    std::string message;
    for (int left = 0; left < 3; ++left) {
      try {
        Segment::create(name, test::kBytes);
      } catch (const SystemError& error) {
        message = error.what();
        EXPECT_EQ(error.code().value(), EMFILE);
        EXPECT_TRUE(contains(message, "64 (RLIMIT_NOFILE)")) << message;
      }
      EXPECT_FALSE(std::filesystem::exists(file()));
      EXPECT_TRUE(left != 0 || !message.empty());
      close(open.back());
      open.pop_back();
    }
    while (dup(0) >= 0) {
    }
    message = message_of<SystemError>([&] { WireLock(std::filesystem::path("/tmp/moetap_none")); });
    EXPECT_TRUE(contains(message, "RLIMIT_NOFILE")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, OpenFilesOfWhoAsksWhoseASegmentIs) {
  endpoint.timeout = Milliseconds(0);
  const ChannelProducer producer(endpoint);
  ChildProcess child([&] {
    lower(RLIMIT_NOFILE, 64);
    std::vector<int> open;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) open.push_back(fd);
    // None for the directory; then none for a segment in it.
    for (int left = 0; left < 2; ++left) {
      const std::string message = message_of<SystemError>([] { find_segments(); });
      EXPECT_TRUE(contains(message, "64 (RLIMIT_NOFILE)")) << message;
      close(open.back());
      open.pop_back();
    }
    close(open.back());  // and one for what lock files are named after
    EXPECT_FALSE(find_segments().empty());
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, OpenFilesOfAllProcesses) {
  EXPECT_TRUE(contains(limit_on_open(ENFILE), "fs.file-max"));
  EXPECT_EQ(limit_on_open(ENOENT), "");
}

TEST_F(LimitsTest, LockedMemory) {
  if (kSanitized) GTEST_SKIP();
  ChildProcess child([&] {
    ASSERT_TRUE(geteuid() != 0 || seteuid(65534) == 0);  // root has no such limit
    lower(RLIMIT_MEMLOCK, 1 << 20);
    ASSERT_EQ(mlockall(MCL_FUTURE), 0);
    const std::string message = refusal(8 << 20);
    EXPECT_TRUE(contains(message, "1048576 (RLIMIT_MEMLOCK)")) << message;
    EXPECT_TRUE(contains(message, "8388608")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, NumberOfMappings) {
  std::size_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  if (kSanitized || most > 200'000) GTEST_SKIP() << most << " mappings take too long";
  ChildProcess child([&] {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    // Neighbours of other rights are mappings of their own.
    for (int i = 0;; ++i) {
      if (mmap(nullptr, page, i % 2 == 0 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0) == MAP_FAILED) {
        break;
      }
    }
    const std::string message = refusal(test::kBytes);
    EXPECT_TRUE(contains(message, std::to_string(most) + " (vm.max_map_count)")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, AddressSpace) {
  if (kSanitized) GTEST_SKIP();
  ChildProcess child([&] {
    lower(RLIMIT_AS, std::size_t{200} << 20);
    const std::string message = refusal(std::size_t{256} << 20);
    EXPECT_TRUE(contains(message, "209715200 bytes of address space")) << message;
    EXPECT_TRUE(contains(message, "RLIMIT_AS")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

// The segment fits, and what the writer needs beside it does not.
TEST_F(LimitsTest, H23AddressSpaceForTheWritersOwnMemoryAndNothingIsLeft) {
  if (kSanitized) GTEST_SKIP();
  endpoint.max_tokens = 16 << 20;
  ChildProcess child([&] {
    std::size_t pages = 0;  // that are used already
    std::ifstream("/proc/self/statm") >> pages;
    const std::size_t limit = pages * sysconf(_SC_PAGESIZE) + (std::size_t{64} << 20);
    lower(RLIMIT_AS, limit);
    const std::string message = message_of<SystemError>([&] { ShmWriter{endpoint}; });
    EXPECT_TRUE(contains(message, "134217728 bytes")) << message;
    EXPECT_TRUE(contains(message, std::to_string(limit) + " bytes of address space")) << message;
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_FALSE(std::filesystem::exists("/dev/shm" + buffer_name(endpoint)));
}

TEST_F(LimitsTest, MemoryOfTheProcessesOwn) {
  if (kSanitized) GTEST_SKIP();
  ChildProcess child([&] {
    lower(RLIMIT_DATA, std::size_t{100} << 20);
    const std::string message =
        message_of<SystemError>([] { PrivateMemory{std::size_t{200} << 20}; });
    EXPECT_TRUE(contains(message, "104857600 bytes of memory of its own")) << message;
    EXPECT_TRUE(contains(message, "RLIMIT_DATA")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

std::string refused_thread() {
  return message_of<SystemError>([] { start_thread("a test", [] {}).join(); });
}

TEST_F(LimitsTest, AddressSpaceForAThread) {
  if (kSanitized) GTEST_SKIP();
  ChildProcess child([&] {
    lower(RLIMIT_AS, std::size_t{200} << 20);
    pthread_attr_t attributes;  // its stack, larger than any that may be left of an earlier thread
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{256} << 20);
    ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
    const std::string message = refused_thread();
    EXPECT_TRUE(contains(message, "a test gets no thread")) << message;
    EXPECT_TRUE(contains(message, "268435456 bytes")) << message;
    EXPECT_TRUE(contains(message, "209715200 bytes of address space")) << message;
    EXPECT_TRUE(contains(message, "ulimit -v")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, ThreadsOfTheUser) {
  if (kSanitized) GTEST_SKIP();
  ChildProcess child([&] {
    ASSERT_TRUE(geteuid() != 0 || setuid(65534) == 0);  // root has no such limit
    lower(RLIMIT_NPROC, 1);
    const std::string message = refused_thread();
    EXPECT_TRUE(contains(message, "may have 1 threads (RLIMIT_NPROC")) << message;
    EXPECT_TRUE(contains(message, "ulimit -u")) << message;
    EXPECT_TRUE(contains(message, "kernel.threads-max")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

// One that may have a single thread, where the system lets this process make one.
class ControlGroup {
 public:
  ControlGroup() {
    for (const char* root : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
      path_ = std::filesystem::path(root) / ("moetap-test-" + std::to_string(getpid()));
      std::error_code error;
      if (!std::filesystem::create_directory(path_, error)) continue;
      std::ofstream limit(path_ / "pids.max");
      if (limit << "1" << std::flush) return;
      std::filesystem::remove(path_, error);
    }
    path_.clear();
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  ~ControlGroup() {
    // The kernel needs a moment after the last of its processes is reaped.
    for (int i = 0; i < 1000 && !path_.empty() && rmdir(path_.c_str()) != 0; ++i) usleep(1000);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST_F(LimitsTest, ThreadsOfTheControlGroup) {
  const ControlGroup group;
  if (kSanitized || group.path().empty()) GTEST_SKIP() << "no control group can be made here";
  ChildProcess child([&] {
    std::ofstream(group.path() / "cgroup.procs") << getpid() << std::flush;
    const std::string message = refused_thread();
    EXPECT_TRUE(contains(message, "1 of 1 (" + (group.path() / "pids.max").string())) << message;
    EXPECT_TRUE(contains(message, "--pids-limit")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

// The system ends a process that exceeds this one.
TEST_F(LimitsTest, SizeOfAFile) {
  ChildProcess child([&] {
    lower(RLIMIT_FSIZE, 8192);
    const std::string message = refusal(test::kBytes);
    EXPECT_TRUE(contains(message, "8192 (RLIMIT_FSIZE)")) << message;
    EXPECT_TRUE(contains(message, std::to_string(test::kBytes))) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, SizeOfABlockFileAndOpenFilesOfABlockStore) {
  const test::TemporaryDirectory directory;
  const auto blocks = directory.path() / "blocks";
  ChildProcess child([&] {
    const auto store = make_directory_block_store(blocks, test::small_store(100));
    lower(RLIMIT_FSIZE, 64);
    std::string message = message_of<SystemError>([&] { test::put(*store, 1); });
    EXPECT_TRUE(contains(message, "64 (RLIMIT_FSIZE)")) << message;
    EXPECT_TRUE(contains(message, blocks.string())) << message;
    EXPECT_TRUE(std::filesystem::is_empty(blocks));
    lower(RLIMIT_FSIZE, RLIM_INFINITY);
    lower(RLIMIT_NOFILE, 64);
    std::vector<int> open;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) open.push_back(fd);
    const auto expect_refused = [](auto&& call) {
      const std::string refused = message_of<SystemError>(call);
      EXPECT_TRUE(contains(refused, "64 (RLIMIT_NOFILE)")) << refused;
    };
    // Its list, its file to look for, and its file to make.
    expect_refused([&] { store->stats(); });
    expect_refused([&] { store->hold(test::key_of(1)); });
    expect_refused([&] { (void)make_directory_block_store(blocks, test::small_store(100)); });
    expect_refused([&] { BlockDirectory{blocks}; });
    close(open.back());
    const BlockDirectory other(blocks);
    expect_refused([&] { other.create("a.moetap", {}); });
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, H23ASmallSharedMemoryFileSystem) {
  if (!can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  ChildProcess child([&] {
    ASSERT_TRUE(mount_own_shared_memory("size=256k"));
    std::string message = refusal(1 << 20);
    EXPECT_TRUE(contains(message, "needs 1048576 bytes and /dev/shm has 262144 bytes free"))
        << message;
    EXPECT_TRUE(contains(message, "--shm-size")) << message;
    const Segment segment = Segment::create(name + "_first", 128 << 10);
    message = refusal(200 << 10);
    EXPECT_TRUE(contains(message, "/dev/shm has 131072 bytes free")) << message;
    // To the last page, and every one of them can be written to.
    const Segment rest = Segment::create(name, 128 << 10);
    std::ranges::fill(rest.bytes(), std::byte{1});
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LimitsTest, H23SharedMemoryWithoutInodes) {
  if (!can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  ChildProcess child([&] {
    ASSERT_TRUE(mount_own_shared_memory("size=1m,nr_inodes=2"));
    std::ofstream("/dev/shm/other") << "x";
    const std::string message = refusal(test::kBytes);
    EXPECT_TRUE(contains(message, "0 of 2 inodes")) << message;
    EXPECT_TRUE(contains(message, "nr_inodes=")) << message;
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace moetap
