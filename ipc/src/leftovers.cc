#include "leftovers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "claim.h"

namespace moetap {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

void remove_if_left(const std::string& name) {
  const Descriptor file(shm_open(name.c_str(), O_RDWR, 0));
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return;
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) return;
  // An owner claims its segment before it gives it a size.
  if (status.st_size == 0) return;
  if (!try_claim_unnamed(file.get(), Role::owner, name)) return;
  if (leads_to(name, file.get())) shm_unlink(name.c_str());
}

}  // namespace

bool leads_to(const std::string& name, int fd) {
  const Descriptor now(shm_open(name.c_str(), O_RDONLY, 0));
  struct stat a {};
  struct stat b {};
  return now.get() >= 0 && fstat(fd, &a) == 0 && fstat(now.get(), &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void remove_leftovers() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/dev/shm", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = "/" + entry->path().filename().string();
    if (name.starts_with(kOurPrefix)) remove_if_left(name);
  }
}

}  // namespace moetap
