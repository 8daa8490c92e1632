// What things of an endpoint are called in the system, the same in every process of a user.
#pragma once

#include <moetap/endpoint.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

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

// The file's name for a native buffer, given that buffer's without the '/'.
std::string lock_file_name(std::string_view buffer);

// As Python's tempfile.gettempdir(): the first of $TMPDIR, $TEMP, $TMP, /tmp, /var/tmp, /usr/tmp
// and the working directory that one can write to. SystemError if none.
std::filesystem::path temporary_directory();

}  // namespace moetap
