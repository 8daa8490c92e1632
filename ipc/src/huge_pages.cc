#include "huge_pages.h"

#include <moetap/error.h>
#include <moetap/segments.h>

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>

namespace moetap {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack

// How /dev/shm is mounted, as the kernel lists it: "tmpfs /dev/shm tmpfs rw,huge=advise 0 0". The
// last of several is the one that is seen.
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

}  // namespace

std::string why_no_huge_pages() {
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), setting);
  const auto is = [&](std::string_view word) { return setting.find(word) != std::string::npos; };
  if (setting.empty()) return "this kernel has no huge pages for shared memory";
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
  // Where there is no room, or the kernel is too old to be asked, the reservation that follows says
  // so or does it.
  madvise(memory.data(), memory.size(), kPopulateWrite);
}

}  // namespace moetap
