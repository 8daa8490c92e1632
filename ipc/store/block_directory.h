// A directory of block files, as the system sees it.
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

// An open file; closes itself, and with it ends the lock that was taken through it, of which forked
// children have no part.
class OpenFile {
 public:
  // open() returns a descriptor, or -1 and sets errno.
  template <std::invocable Open>
  explicit OpenFile(Open&& open) : file_(std::forward<Open>(open)) {}

  int fd() const { return file_.get(); }

  // At most `most` bytes.
  std::vector<std::byte> read(std::size_t most) const;
  // It was used now.
  void touch() const;

 private:
  GuardedDescriptor file_;
};

class BlockDirectory {
 public:
  // See make_directory_block_store.
  explicit BlockDirectory(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  // Null if there is none, or it is not a plain file of this user's (then `refused` counts up).
  std::optional<OpenFile> open(const std::string& name, std::uint64_t& refused) const;

  // Makes the file appear whole under its name; false if there is one of this name.
  bool create(const std::string& name, std::span<const std::byte> bytes) const;

  // Locks the file without waiting: shared by those who hold it, exclusive for who removes it.
  // False if a lock of the other kind is there, or if this is not, or not any more, the file of the
  // name.
  bool lock(const std::string& name, const OpenFile& file, bool exclusive) const;

  // False if someone holds it.
  bool remove(const std::string& name, const OpenFile& file) const;

  struct Entry {
    std::string name;
    std::size_t bytes = 0;
    timespec used{};
  };
  // Block files, the least recently used first. Removes what processes that died in create() left.
  std::vector<Entry> list() const;

 private:
  std::filesystem::path path_;
  OpenFile directory_;
};

}  // namespace moetap
