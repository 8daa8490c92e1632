// The system calls on a directory of block files.
#pragma once

#include <sys/stat.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/system/fork_guard.h"

namespace moetap {

// An open file. Closing it ends its lock, which forked children do not share.
class OpenFile {
 public:
  // open() returns a descriptor, or -1 and sets errno.
  template <std::invocable Open>
  explicit OpenFile(Open&& open) : file_(std::forward<Open>(open)) {}

  int fd() const { return file_.get(); }

  // Reads at most `most` bytes.
  std::vector<std::byte> read(std::size_t most) const;
  // Marks the file as used now.
  void touch() const;

 private:
  GuardedDescriptor file_;
};

class BlockDirectory {
 public:
  // See make_directory_block_store.
  explicit BlockDirectory(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  // Null if there is none, or if it is not a plain file of this user (then `refused` is
  // incremented).
  std::optional<OpenFile> open(const std::string& name, std::uint64_t& refused) const;

  // Makes the complete file appear under its name. Returns false if the name exists.
  bool create(const std::string& name, std::span<const std::byte> bytes) const;

  // Locks the file without waiting: shared to hold it, exclusive to remove it. Returns false if
  // there is a conflicting lock, or if the name does not refer to this file (any more).
  bool lock(const std::string& name, const OpenFile& file, bool exclusive) const;

  // Returns false if any process holds it.
  bool remove(const std::string& name, const OpenFile& file) const;

  struct Entry {
    std::string name;
    std::size_t bytes = 0;
    timespec used{};
  };
  // Block files, least recently used first. Removes files left by processes that died in create().
  std::vector<Entry> list() const;

 private:
  std::filesystem::path path_;
  OpenFile directory_;
};

}  // namespace moetap
