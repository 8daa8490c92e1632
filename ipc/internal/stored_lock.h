// The lock file that a native buffer says it has.
#pragma once

#include <moetap/file_lock.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace moetap {

// `stored`: ShmControl::lock_path, read or copied by the caller. MismatchError for any path but
// that of a file that the worker of this segment can have made.
std::filesystem::path stored_lock_path(const std::string& segment, std::span<const char> stored);

// Opens the one with this identity; nothing if there is none, or another one. Never made here: a
// file that its worker has removed is not to come back.
std::optional<FileLock> open_lock_file(const std::filesystem::path& path,
                                       const FileLock::File& identity);

}  // namespace moetap
