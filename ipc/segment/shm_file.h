// The file of a shared memory segment in /dev/shm: its name, whose it is, and how it is opened.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>

namespace moetap {

// The kernel ignores the sticky bit here. It distinguishes segments that our processes created from
// those of vLLM.
inline constexpr mode_t kMadeByUs = S_ISVTX;
inline constexpr mode_t kSegmentMode = kMadeByUs | 0600;

// ArgumentError unless `name` is '/' and then what a file's name may be made of.
void check_name(const std::string& name);

struct stat file_status(int fd, const std::string& name);  // SystemError
// Of what the name refers to, also if it may not be opened. Nothing if that is not known.
std::optional<struct stat> named_status(const std::string& name);

// MismatchError if it is no regular file, another user's, or others may write to it.
void check_ours(const struct stat& status, const std::string& name);

// Return a descriptor, or -1 with errno. MismatchError as check_ours().
int open_existing(const std::string& name);
int open_or_create(const std::string& name);

// What to do about the errno of a segment that could not be opened.
[[noreturn]] void throw_open_error(const std::string& name, int error);

}  // namespace moetap
