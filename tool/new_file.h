// A file that appears complete or not at all, readable only by its user.
#pragma once

#include <string>
#include <string_view>

#include "tool/interrupts.h"

namespace moetap::tool {

// Written beside the file that it replaces. Before keep() it is removed with this object.
class NewFile {
 public:
  // ArgumentError if the path exists and is not a plain file, or is a symbolic link: only plain
  // files are replaced, and links are not followed. SystemError.
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Appends. SystemError; Interrupted.
  void write(std::string_view bytes, const Interrupts& interrupts);
  // Renames it to its final name. SystemError.
  void place();
  void keep() { at_.clear(); }

 private:
  std::string path_;
  std::string at_;  // its present path
  int fd_ = -1;
};

}  // namespace moetap::tool
