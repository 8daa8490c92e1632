#include "ipc/system/huge_pages.h"

#include <moetap/error.h>
#include <moetap/segments.h>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

#include "lib/internal/numbers.h"

namespace moetap {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack

// How /dev/shm is mounted, as the kernel lists it: "tmpfs /dev/shm tmpfs rw,huge=advise 0 0". With
// several, the last one is the visible one.
std::string mount_options() {
  std::ifstream mounts("/proc/self/mounts");
  std::string options;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, place, type, found;
    words >> device >> place >> type >> found;
    if (place == "/dev/shm") options = "," + found + ",";
  }
  return options;
}

std::size_t huge_page_bytes() {
  std::size_t bytes = 0;
  std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> bytes;
  return bytes;
}

// The bytes in huge pages of the mapping that starts here, from /proc/self/smaps: "7f12-7f34 rw-s
// ..." and then "ShmemPmdMapped:  2048 kB".
std::size_t mapped_in_huge_pages(const void* start) {
  const std::string first = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(start));
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  while (std::getline(smaps, line) && !line.starts_with(first)) {
  }
  constexpr std::string_view field = "ShmemPmdMapped:";
  while (std::getline(smaps, line) && !line.starts_with("VmFlags:")) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size())) * 1024;
  }
  return 0;
}

}  // namespace

std::string why_no_huge_pages() {
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), setting);
  const auto is = [&](std::string_view word) { return setting.find(word) != std::string::npos; };
  if (setting.empty() || huge_page_bytes() == 0)
    return "this kernel has no huge pages for shared memory";
  if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) {
    return "they are off for this process: see who called prctl(PR_SET_THP_DISABLE) in it";
  }
  if (is("[force]")) return "";
  if (is("[deny]")) {
    return "they are denied: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  }
  const std::string options = mount_options();
  for (const char* good : {",huge=always,", ",huge=within_size,", ",huge=advise,"}) {
    if (options.find(good) != std::string::npos) return "";
  }
  return "/dev/shm is mounted without them: mount -o remount,huge=advise /dev/shm";
}

void require_huge_pages(const std::string& name) {
  const std::string reason = why_no_huge_pages();
  if (reason.empty()) return;
  throw SystemError(ENOTSUP, fmt::format("shared memory {} cannot be in huge pages, since {}; or "
                                         "leave Endpoint::huge_pages off",
                                         name, reason));
}

void back_with_huge_pages(std::span<std::byte> memory, const std::string& name) {
  if (madvise(memory.data(), memory.size(), MADV_HUGEPAGE) != 0) {
    throw SystemError(errno, fmt::format("cannot have huge pages for shared memory {}", name));
  }
  // If there is no room, the later reservation reports it; if the kernel is too old, the
  // reservation does the work.
  madvise(memory.data(), memory.size(), kPopulateWrite);
}

std::size_t in_whole_huge_pages(std::size_t bytes) {
  const std::size_t huge = huge_page_bytes();
  if (bytes > std::numeric_limits<std::size_t>::max() - huge) return bytes;  // no room anyway
  return detail::round_up(bytes, huge);
}

void require_in_huge_pages(std::span<const std::byte> memory, const std::string& name) {
  const std::size_t huge = mapped_in_huge_pages(memory.data());
  if (huge == memory.size()) return;
  throw SystemError(
      ENOMEM,
      fmt::format("shared memory {} got {} of its {} bytes in huge pages of {}: free memory may be "
                  "too scattered (echo 1 > /proc/sys/vm/compact_memory), or Linux is older than "
                  "5.14; or leave Endpoint::huge_pages off",
                  name, huge, memory.size(), huge_page_bytes()));
}

}  // namespace moetap
