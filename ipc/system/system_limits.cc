#include "ipc/internal/system_limits.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
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

// The value of RLIMIT_STACK at the process's start, unless the process changed it.
std::size_t stack_of_a_thread() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) == 0) {
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
  }
  return bytes;
}

struct Used {
  std::size_t now = 0;
  std::size_t most = 0;
};

// The first of this process's control groups, from its own upwards, that has reached its limit of
// processes and threads; "" if none. /proc/self/cgroup has "0::/a/b", or "8:pids:/a/b" of version
// 1.
std::string full_control_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "pids") continue;
    const std::filesystem::path root =
        controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    // Inside a container the path may be that of the host, with the container's own group as the
    // root.
    for (std::filesystem::path group = line.substr(second + 1);; group = group.parent_path()) {
      const std::filesystem::path directory = root / group.relative_path();
      Used tasks;
      if (std::ifstream(directory / "pids.max") >> tasks.most &&
          std::ifstream(directory / "pids.current") >> tasks.now && tasks.now >= tasks.most) {
        return fmt::format("{} of {} ({})", tasks.now, tasks.most,
                           (directory / "pids.max").string());
      }
      if (!group.has_relative_path()) break;
    }
  }
  return "";
}

// Threads of the whole system: /proc/loadavg has "0.10 0.20 0.30 2/345 6789".
Used threads_of_the_system() {
  Used threads;
  std::ifstream("/proc/sys/kernel/threads-max") >> threads.most;
  std::string load[3];
  std::size_t running = 0;
  char slash = 0;
  std::ifstream("/proc/loadavg") >> load[0] >> load[1] >> load[2] >> running >> slash >>
      threads.now;
  return threads;
}

std::string or_unlimited(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit);
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

std::string limit_on_create(int error, const std::string& directory) {
  struct statvfs system {};
  if (error != ENOSPC || statvfs(directory.c_str(), &system) != 0) return limit_on_open(error);
  return fmt::format(
      ": its file system has {} of {} inodes and {} bytes free: remove what is left in {}, or "
      "enlarge it (mount -o remount,nr_inodes=...,size=...)",
      system.f_favail, system.f_files, std::size_t{system.f_bavail} * system.f_frsize, directory);
}

std::string limit_on_map(int error, std::size_t bytes, Mapped kind) {
  // From mlockall(MCL_FUTURE), as nothing here locks memory itself.
  if (error == EAGAIN) {
    return fmt::format(
        ": this process locks what it maps, and {} bytes are more than it may lock, {} "
        "(RLIMIT_MEMLOCK): raise it with ulimit -l, LimitMEMLOCK= or docker run --ulimit memlock=",
        bytes, soft_limit(RLIMIT_MEMLOCK));
  }
  if (error != ENOMEM) return "";
  std::size_t most_maps = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most_maps;
  // The allocator also uses the last mappings, and may have made and removed some meanwhile.
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
  const rlim_t data = soft_limit(RLIMIT_DATA);
  if (const std::size_t used = status_bytes("VmData");
      kind == Mapped::own && data != RLIM_INFINITY && used + bytes > data) {
    return fmt::format(
        ": {} bytes are needed, and of the {} bytes of memory of its own that this process may "
        "have (RLIMIT_DATA) {} are used: raise it with ulimit -d or LimitDATA=",
        bytes, data, used);
  }
  return fmt::format(
      ": {} bytes are needed, and the system has not that much memory to give "
      "(vm.overcommit_memory "
      "is {}): configure fewer slots or a shorter ring",
      bytes, value_of("/proc/sys/vm/overcommit_memory"));
}

// The call returns EAGAIN for each of these limits.
std::string limit_on_thread() {
  const rlim_t space = soft_limit(RLIMIT_AS);
  const std::size_t stack_bytes = stack_of_a_thread();
  if (const std::size_t used = status_bytes("VmSize");
      space != RLIM_INFINITY && used + stack_bytes > space) {
    return fmt::format(
        ": its stack needs {} bytes, and of the {} bytes of address space that this process may "
        "have (RLIMIT_AS) {} are used: raise it with ulimit -v, or start with smaller stacks "
        "(ulimit -s)",
        stack_bytes, space, used);
  }
  if (const std::string full = full_control_group(); !full.empty()) {
    return fmt::format(
        ": the control group has as many processes and threads as it may, {}: raise it with "
        "TasksMax= or docker run --pids-limit",
        full);
  }
  if (const Used all = threads_of_the_system(); all.most != 0 && all.now + 16 >= all.most) {
    return fmt::format(
        ": all processes together have {} threads, and the system allows {} (kernel.threads-max): "
        "raise it with sysctl",
        all.now, all.most);
  }
  return fmt::format(
      ": the user's processes may have {} threads (RLIMIT_NPROC: raise it with ulimit -u, "
      "LimitNPROC= or "
      "docker run --ulimit nproc=), all processes {} (kernel.threads-max) with numbers below {} "
      "(kernel.pid_max), and this one {} mappings (vm.max_map_count): see which is used up",
      or_unlimited(soft_limit(RLIMIT_NPROC)), value_of("/proc/sys/kernel/threads-max"),
      value_of("/proc/sys/kernel/pid_max"), value_of("/proc/sys/vm/max_map_count"));
}

void require_file_size(std::size_t bytes, const std::string& what) {
  const rlim_t most = soft_limit(RLIMIT_FSIZE);
  if (most == RLIM_INFINITY || bytes <= most) return;
  throw SystemError(EFBIG, fmt::format("{} needs {} bytes, and no file of this process may have "
                                       "more than {} (RLIMIT_FSIZE): raise it with ulimit -f",
                                       what, bytes, most));
}

}  // namespace moetap
