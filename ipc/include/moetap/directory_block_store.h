// Rows of KV blocks in files, one file per block, for processes that share a directory.
#pragma once

#include <moetap/block_store.h>
#include <moetap/export.h>

#include <filesystem>
#include <memory>

namespace moetap {

// A block that one process puts is found by this user's other processes, now and later. Files are
// written under a temporary name and appear complete, with mode 0600. A file that is short,
// changed, not ours, or of another shape or other weights is a miss and counts as `refused`.
// Damaged files of ours are removed. The file that any process used least recently is removed
// first. A block that a living process holds is never removed; each hold keeps a file open. The
// files stay within max_bytes, except for what other processes put since this one last scanned the
// directory. It scans after each eighth of max_bytes.
//
// The directory is created (mode 0700) if it does not exist. MismatchError if it is another user's,
// or if other users may write to it. SystemError, with the bytes needed, if the system refuses a
// call. ArgumentError if max_bytes has no room for one file.
[[nodiscard]] MOETAP_API std::unique_ptr<BlockStore> make_directory_block_store(
    const std::filesystem::path& directory, BlockStoreOptions options);

}  // namespace moetap
