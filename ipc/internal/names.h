// What things of an endpoint are called in the system, the same in every process of a user.
#pragma once

#include <moetap/endpoint.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moetap {

// Shared memory: of the `shm` transport (by its layout), and of the `device` transport's ring.
std::string buffer_name(const Endpoint& endpoint);
std::string ring_name(const Endpoint& endpoint);

// What a segment's name says of its endpoint. Names that the two functions above would not make
// may be taken for one of theirs: compare.
struct NamedEndpoint {
  std::string instance;
  int dp_rank = 0;
  int stage = 0;
  int part = 0;
};
std::optional<NamedEndpoint> parse_name(std::string_view name);

// The lock file of the `shm` transport's buffer. Native: in $XDG_RUNTIME_DIR if that is a directory
// of this user's, else in a private directory (made here, mode 0700) below the directory for
// temporary files; MismatchError if that is there and not private. Wire layout: where vLLM has it.
std::filesystem::path lock_path(const Endpoint& endpoint);

// What the names of native lock files end with: they say which /dev/shm of which machine their
// buffers are in, since containers and machines may share the directory. SystemError where nothing
// says which.
std::string lock_suffix();

// The file's name for a native buffer, given that buffer's without the '/'.
std::string lock_file_name(std::string_view buffer);

// Whether a file of this name is the buffer's in one process's eyes or another's, of which a
// container may think that its machine is its own.
bool may_be_lock_file_of(std::string_view buffer, std::string_view file);

// The buffer, without '/', whose lock file has that name, with lock_suffix(); "" if it is no such.
std::string_view buffer_of_lock_file(std::string_view file, std::string_view suffix);

// Those directories for native lock files that are there, whichever of them is in use now.
std::vector<std::filesystem::path> lock_directories();

// As Python's tempfile.gettempdir(): the first of $TMPDIR, $TEMP, $TMP, /tmp, /var/tmp, /usr/tmp
// and the working directory that one can write to. SystemError if none.
std::filesystem::path temporary_directory();

}  // namespace moetap
