#include "system_limits.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <string_view>

namespace moetap {
namespace {

rlim_t soft_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::string value_of(const char* file) {
  std::string value;
  std::getline(std::ifstream(file), value);
  return value.empty() ? "unknown" : value;
}

std::size_t count_maps() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// Of /proc/self/status: "VmSize:     12345 kB".
std::size_t status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

std::string limit_on_open(int error) {
  if (error == EMFILE) {
    return fmt::format(
        ": this process has as many files open as it may, {} (RLIMIT_NOFILE): raise it with ulimit "
        "-n, LimitNOFILE= or docker run --ulimit nofile=",
        soft_limit(RLIMIT_NOFILE));
  }
  if (error == ENFILE) {
    return fmt::format(
        ": all processes together have as many files open as the system allows, {} (fs.file-max): "
        "raise it with sysctl",
        value_of("/proc/sys/fs/file-max"));
  }
  return "";
}

std::string limit_on_map(int error, std::size_t bytes) {
  // Of mlockall(MCL_FUTURE), since nothing here locks memory by itself.
  if (error == EAGAIN) {
    return fmt::format(
        ": this process locks what it maps, and {} bytes are more than it may lock, {} "
        "(RLIMIT_MEMLOCK): raise it with ulimit -l, LimitMEMLOCK= or docker run --ulimit memlock=",
        bytes, soft_limit(RLIMIT_MEMLOCK));
  }
  if (error != ENOMEM) return "";
  std::size_t most_maps = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most_maps;
  // The last ones are wanted by the allocator too, whose maps may have come and gone meanwhile.
  if (const std::size_t maps = count_maps(); most_maps != 0 && maps + 16 >= most_maps) {
    return fmt::format(
        ": this process has {} mappings, and the system allows {} (vm.max_map_count): raise it "
        "with sysctl",
        maps, most_maps);
  }
  const rlim_t space = soft_limit(RLIMIT_AS);
  if (const std::size_t used = status_bytes("VmSize");
      space != RLIM_INFINITY && used + bytes > space) {
    return fmt::format(
        ": {} bytes are needed, and of the {} bytes of address space that this process may have "
        "(RLIMIT_AS) {} are used: raise it with ulimit -v",
        bytes, space, used);
  }
  return fmt::format(
      ": {} bytes are needed, and the system has not that much memory to give "
      "(vm.overcommit_memory "
      "is {}): configure fewer slots or a shorter ring",
      bytes, value_of("/proc/sys/vm/overcommit_memory"));
}

void require_file_size(std::size_t bytes, const std::string& what) {
  const rlim_t most = soft_limit(RLIMIT_FSIZE);
  if (most == RLIM_INFINITY || bytes <= most) return;
  throw SystemError(EFBIG, fmt::format("{} needs {} bytes, and no file of this process may have "
                                       "more than {} (RLIMIT_FSIZE): raise it with ulimit -f",
                                       what, bytes, most));
}

}  // namespace moetap
