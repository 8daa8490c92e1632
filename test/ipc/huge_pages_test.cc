// Segments in huge pages, and why there are none.

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/segments.h>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "ipc/internal/channel.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/internal/system_limits.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/own_shared_memory.h"
#include "test/ipc/segment_test.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::can_mount_shared_memory;
using test::ChildProcess;
using test::contains;
using test::message_of;
using test::mount_own_shared_memory;

// Of the mapping at this address, from /proc/self/smaps.
std::size_t mapped_in_huge_pages(const void* at) {
  char start[32];
  std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(at));
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') != std::string::npos && line.find(':') > line.find('-')) {
      here = line.starts_with(start);
    }
    if (here && line.starts_with("ShmemPmdMapped:")) return std::stoull(line.substr(15)) * 1024;
  }
  return 0;
}

class HugePages : public test::SegmentTest {
 protected:
  HugePages() {
    std::ifstream size("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size >> huge;
  }
  void SetUp() override {
    std::ifstream setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if (huge == 0 || !setting || !can_mount_shared_memory()) {
      GTEST_SKIP() << "needs a mount of its own";
    }
  }
  // In a /dev/shm that gives them.
  template <class Body>
  static void expect_in_child(const Body& body) {
    ChildProcess child([&] {
      ASSERT_TRUE(mount_own_shared_memory("size=64m,huge=advise"));
      ASSERT_EQ(why_no_huge_pages(), "");
      body();
    });
    EXPECT_EQ(child.join(), 0);
  }

  std::size_t huge = 0;
};

// All of it, also what is smaller than one; or an error of a machine that has no more of them.
TEST_F(HugePages, AreWhatAllOfASegmentIsIn) {
  expect_in_child([&] {
    for (const std::size_t bytes : {std::size_t{1}, test::kBytes, huge, 3 * huge + 1}) {
      const std::size_t whole = (bytes + huge - 1) / huge * huge;
      try {
        const Segment segment = Segment::create(name, bytes, true);
        EXPECT_EQ(segment.bytes().size(), whole);
        EXPECT_EQ(mapped_in_huge_pages(segment.bytes().data()), whole);
        EXPECT_EQ(std::ranges::count(segment.bytes(), std::byte{0}), std::ssize(segment.bytes()));
        EXPECT_EQ(Segment::open(name).bytes().size(), whole);
      } catch (const SystemError& error) {
        EXPECT_TRUE(contains(error.what(), "of its " + std::to_string(whole))) << error.what();
      }
      EXPECT_FALSE(std::filesystem::exists(file()));
    }
    const Segment small = Segment::create(name, 4 * huge);
    EXPECT_EQ(mapped_in_huge_pages(small.bytes().data()), 0u);
    const std::string full = message_of<SystemError>(
        [&] { Segment::create(name + "_full", std::size_t{1} << 30, true); });
    EXPECT_TRUE(contains(full, "1073741824")) << full;
  });
}

TEST_F(HugePages, ServeBothTransports) {
  expect_in_child([&] {
    endpoint.huge_pages = true;
    try {
      const ShmWriter writer(endpoint);
      const ChannelProducer producer(endpoint);
      EXPECT_EQ(make_shm_reader(endpoint)->poll(), Step(0));
      const ChannelConsumer consumer(endpoint);
    } catch (const SystemError& error) {
      EXPECT_TRUE(contains(error.what(), "scattered")) << error.what();
    }
  });
}

// As from Linux before 5.14: nothing is said, and small pages are given.
TEST_F(HugePages, ThatTheKernelDoesNotGiveAreAnError) {
  expect_in_child([&] {
    constexpr std::uint32_t kPopulateWrite = 23;
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPopulateWrite, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(code), code};
    ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    const std::string message =
        message_of<SystemError>([&] { Segment::create(name, test::kBytes, true); });
    EXPECT_TRUE(contains(message, "got 0 of its " + std::to_string(huge))) << message;
    EXPECT_TRUE(contains(message, "5.14")) << message;
    EXPECT_FALSE(std::filesystem::exists(file()));
  });
}

TEST_F(HugePages, ThatAreOffForTheProcessAreAnErrorThatSaysWhy) {
  expect_in_child([&] {
    ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    EXPECT_TRUE(contains(why_no_huge_pages(), "PR_SET_THP_DISABLE"));
    const std::string message =
        message_of<SystemError>([&] { Segment::create(name, test::kBytes, true); });
    EXPECT_TRUE(contains(message, why_no_huge_pages())) << message;
  });
}

class WithoutHugePages : public test::SegmentTest {};

TEST_F(WithoutHugePages, TheWireLayoutRefusesThem) {
  endpoint.layout = ShmLayout::wire;
  endpoint.huge_pages = true;
  const std::string message = message_of<ArgumentError>([&] { ShmWriter{endpoint}; });
  EXPECT_TRUE(contains(message, "huge_pages")) << message;
}

TEST_F(WithoutHugePages, ThatAreNotGivenIsAnErrorThatSaysWhy) {
  if (!can_mount_shared_memory()) GTEST_SKIP() << "needs a mount of its own";
  ChildProcess child([&] {
    ASSERT_TRUE(mount_own_shared_memory("size=64m"));
    const std::string why = why_no_huge_pages();
    ASSERT_NE(why, "");
    endpoint.huge_pages = true;
    const std::string message = message_of<SystemError>([&] { ShmWriter{endpoint}; });
    EXPECT_TRUE(contains(message, why)) << message;
    EXPECT_TRUE(std::filesystem::is_empty("/dev/shm"));
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace moetap
