#include "ipc/internal/names.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "ipc/internal/system_limits.h"
#include "ipc/segment/leftovers.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;

bool writable_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) && access(path.c_str(), W_OK | X_OK) == 0;
}

std::optional<fs::path> find_temporary_directory() {
  for (const char* variable : {"TMPDIR", "TEMP", "TMP"}) {
    const char* set = std::getenv(variable);
    if (set != nullptr && *set != '\0' && writable_directory(set)) return fs::absolute(set);
  }
  for (const char* usual : {"/tmp", "/var/tmp", "/usr/tmp"}) {
    if (writable_directory(usual)) return usual;
  }
  if (writable_directory(".")) return fs::current_path();
  return std::nullopt;
}

// A directory that nobody else can put a file, or a link, into.
bool private_directory(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// $XDG_RUNTIME_DIR if it can be used, else empty.
fs::path users_runtime_directory() {
  const char* set = std::getenv("XDG_RUNTIME_DIR");
  return set != nullptr && *set == '/' && private_directory(set) && writable_directory(set)
             ? set
             : fs::path();
}

fs::path own_directory(const fs::path& temporary) {
  return temporary / fmt::format("moetap-{}", geteuid());
}

fs::path runtime_directory() {
  if (fs::path users = users_runtime_directory(); !users.empty()) return users;
  fs::path own = own_directory(temporary_directory());
  if (mkdir(own.c_str(), 0700) != 0 && errno != EEXIST) {
    throw SystemError(errno, fmt::format("cannot make {} for lock files", own.string()));
  }
  if (!private_directory(own)) {
    throw MismatchError(
        fmt::format("{} is no directory, belongs to another user than {}, or others may write to "
                    "it: remove it, "
                    "or set XDG_RUNTIME_DIR or TMPDIR to a private directory",
                    own.string(), geteuid()));
  }
  return own;
}

constexpr std::string_view kLockEnd = ".lock";

// Which endpoint of an instance this is. Each begins with a number or a letter of its own, so that
// no two read alike, whatever the instance's name ends with.
std::string share(const Endpoint& endpoint) {
  std::string text = fmt::format("{}", endpoint.dp_rank);
  if (endpoint.stage > 0) text += fmt::format("_s{}", endpoint.stage);
  if (endpoint.part > 0) text += fmt::format("_p{}", endpoint.part);
  return text;
}

bool remove_prefix(std::string_view& text, std::string_view prefix) {
  const bool there = text.starts_with(prefix);
  if (there) text.remove_prefix(prefix.size());
  return there;
}

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  const bool there = text.ends_with(suffix);
  if (there) text.remove_suffix(suffix.size());
  return there;
}

// Takes "<before><number>" off the end.
std::optional<int> remove_number(std::string_view& text, std::string_view before) {
  const std::size_t at = text.find_last_not_of("0123456789") + 1;
  int number = 0;
  const auto digits = text.substr(at);
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (parsed.ec != std::errc{} || !text.substr(0, at).ends_with(before)) return std::nullopt;
  text.remove_suffix(digits.size() + before.size());
  return number;
}

}  // namespace

std::optional<NamedEndpoint> parse_name(std::string_view name) {
  if (!remove_prefix(name, kOurPrefix) && !remove_prefix(name, kWirePrefix)) return std::nullopt;
  remove_suffix(name, "_ring");
  NamedEndpoint found;
  found.part = remove_number(name, "_p").value_or(0);
  found.stage = remove_number(name, "_s").value_or(0);
  const std::optional<int> rank = remove_number(name, "_");
  if (!rank) return std::nullopt;
  found.dp_rank = *rank;
  found.instance = name;
  return found;
}

std::string buffer_name(const Endpoint& endpoint) {
  const auto prefix = endpoint.layout == ShmLayout::wire ? "vllm_routed_experts_buffer" : "moetap";
  return fmt::format("/{}_{}_{}", prefix, endpoint.instance, share(endpoint));
}

std::string ring_name(const Endpoint& endpoint) {
  return fmt::format("{}{}_{}_ring", kOurPrefix, endpoint.instance, share(endpoint));
}

fs::path lock_path(const Endpoint& endpoint) {
  if (endpoint.layout == ShmLayout::wire) {
    return temporary_directory() /
           fmt::format("vllm_routed_experts_{}_{}.lock", endpoint.instance, endpoint.dp_rank);
  }
  return runtime_directory() / lock_file_name(buffer_name(endpoint).substr(1));
}

// The number of /dev/shm is not enough: another machine, or this one after its next start, gives it
// to another.
std::string lock_suffix() {
  constexpr const char* boot_file = "/proc/sys/kernel/random/boot_id";
  errno = 0;
  std::string boot;
  std::getline(std::ifstream(boot_file), boot);
  struct stat status {};
  if (boot.empty() || stat("/dev/shm", &status) != 0) {
    throw SystemError(errno, fmt::format("cannot read {} and the number of /dev/shm, after which "
                                         "lock files are named: both must be mounted{}",
                                         boot_file, limit_on_open(errno)));
  }
  return fmt::format(".{}-{:x}-{:x}{}", boot, status.st_dev, status.st_ino, kLockEnd);
}

std::string lock_file_name(std::string_view buffer) {
  return fmt::format("{}{}", buffer, lock_suffix());
}

bool may_be_lock_file_of(std::string_view buffer, std::string_view file) {
  return remove_prefix(file, buffer) && remove_prefix(file, ".") && remove_suffix(file, kLockEnd) &&
         !file.empty() && file.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

std::string_view buffer_of_lock_file(std::string_view file, std::string_view suffix) {
  const bool is_one =
      file.starts_with(std::string_view(kOurPrefix).substr(1)) && remove_suffix(file, suffix);
  return is_one ? file : std::string_view();
}

std::vector<fs::path> lock_directories() {
  std::vector<fs::path> found;
  if (fs::path users = users_runtime_directory(); !users.empty()) found.push_back(users);
  if (const auto temporary = find_temporary_directory()) {
    if (fs::path own = own_directory(*temporary); private_directory(own)) found.push_back(own);
  }
  return found;
}

fs::path temporary_directory() {
  if (auto found = find_temporary_directory()) return *found;
  throw SystemError(
      ENOENT, "no directory for temporary files can be written to: set TMPDIR to one that can");
}

}  // namespace moetap
