// A file that is there whole or not at all, for its user only.
#pragma once

#include <string>
#include <string_view>

#include "tool/interrupts.h"

namespace moetap::tool {

// Written beside the file of that name, which it takes the place of. Until keep() it is removed
// with this object.
class NewFile {
 public:
  // ArgumentError if there is something that is no plain file, a symbolic link too: nothing but a
  // file is replaced, and no link is followed. SystemError.
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Appends. SystemError; Interrupted.
  void write(std::string_view bytes, const Interrupts& interrupts);
  // Gives it its name. SystemError.
  void place();
  void keep() { at_.clear(); }

 private:
  std::string path_;
  std::string at_;  // where it lies now
  int fd_ = -1;
};

}  // namespace moetap::tool
