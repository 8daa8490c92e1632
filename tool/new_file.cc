#include "tool/new_file.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "tool/failure.h"

namespace moetap::tool {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // between two checks for a signal

void require_replaceable(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  throw ArgumentError(
      fmt::format("{} is {}, which is neither followed nor replaced: name another file", path,
                  S_ISLNK(status.st_mode) ? "a symbolic link" : "no plain file"));
}

}  // namespace

NewFile::NewFile(std::string path) : path_(std::move(path)) {
  require_replaceable(path_);
  at_ = std::filesystem::path(path_).parent_path() / ".moetap-XXXXXX";
  fd_ = mkostemp(at_.data(), O_CLOEXEC);  // mode 0600
  if (fd_ < 0) throw SystemError(errno, fmt::format("cannot make a file beside {}", path_));
}

NewFile::~NewFile() {
  if (fd_ >= 0) close(fd_);
  if (!at_.empty()) unlink(at_.c_str());
}

void NewFile::write(std::string_view bytes, const Interrupts& interrupts) {
  while (!bytes.empty()) {
    if (interrupts.came()) throw Interrupted(fmt::format("interrupted: {} was not written", path_));
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SystemError(errno, fmt::format("cannot write {}", path_));
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void NewFile::place() {
  if (close(std::exchange(fd_, -1)) != 0 || std::rename(at_.c_str(), path_.c_str()) != 0) {
    throw SystemError(errno, fmt::format("cannot write {}", path_));
  }
  at_ = path_;
}

}  // namespace moetap::tool
