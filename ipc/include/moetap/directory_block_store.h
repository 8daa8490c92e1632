// Rows of KV blocks in files, one a block, for processes that share a directory.
#pragma once

#include <moetap/block_store.h>

#include <filesystem>
#include <memory>

namespace moetap {

// A block that one process of this user puts is found by the others, and by those that come later.
// Files are written under a temporary name and appear whole, mode 0600. One that is short, changed,
// of another shape or of other weights, or not ours is a miss and counts as `refused`; ours that is
// damaged is removed. What was used least recently by anyone is removed first, but nothing that a
// living process holds (each hold keeps a file open). Files of `directory` stay within max_bytes
// but for what other processes put since this one looked last, which it does after each eighth.
//
// The directory is made (mode 0700) if there is none; MismatchError if it is another user's, or if
// others may write to it. SystemError for what the system refuses, with the bytes that were needed;
// ArgumentError if max_bytes has no room for a file.
std::unique_ptr<BlockStore> make_directory_block_store(const std::filesystem::path& directory,
                                                       BlockStoreOptions options);

}  // namespace moetap
