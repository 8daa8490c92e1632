#include "ipc/internal/stored_lock.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <cstring>
#include <system_error>

#include "ipc/internal/names.h"

namespace moetap {

std::filesystem::path stored_lock_path(const std::string& segment, std::span<const char> stored) {
  std::filesystem::path path(std::string(stored.data(), strnlen(stored.data(), stored.size())));
  if (path.is_absolute() && may_be_lock_file_of(segment.substr(1), path.filename().string())) {
    return path;
  }
  throw MismatchError(
      fmt::format("{} names the lock file '{}', which is no path of one of its own: is it of this "
                  "version of moetap?",
                  segment, path.string()));
}

std::optional<FileLock> open_lock_file(const std::filesystem::path& path,
                                       const FileLock::File& identity) {
  try {
    FileLock lock(path, FileLock::Open::existing);
    if (lock.file() == identity) return lock;
  } catch (const SystemError& error) {
    if (error.code() != std::errc::no_such_file_or_directory) throw;
  }
  return std::nullopt;
}

}  // namespace moetap
