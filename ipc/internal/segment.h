// A named piece of POSIX shared memory with an owner.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ipc/internal/file_lock.h"

namespace boost::interprocess {
class mapped_region;
}

namespace moetap {

// Creates (and owns) or opens a segment. The owner has a claim to it (an open file description
// lock, fcntl(2)) during its whole lifetime. The kernel releases the claim when the process dies,
// and forked children do not inherit it. So a segment without a claim has no living owner, whatever
// pids say, and the next create() reclaims it. Any process can ask for the owner without taking the
// claim. Movable.
class Segment {
 public:
  // Reserves `bytes` (posix_fallocate, so no SIGBUS later), mode 0600, zero-filled. Before that it
  // removes segments that dead owners left: of this name, and the user's others that begin with
  // "/moetap_". A name is a '/' followed by letters, digits, '-', '_' and '.'. OwnedError with the
  // living owner's pid. SystemError with the bytes needed and free, and what to change, if /dev/shm
  // is too small. MismatchError for another user's segment, ArgumentError for a bad name or size.
  // huge_pages: see Endpoint; rounds `bytes` up to whole huge pages.
  static Segment create(const std::string& name, std::size_t bytes, bool huge_pages = false);

  // As create(), but an existing segment of exactly `bytes` without an owner is kept as it is, and
  // becomes the caller's; is_adopted() says so. A segment that another program created is not
  // removed at the end; with another size it is a MismatchError.
  static Segment create_or_adopt(const std::string& name, std::size_t bytes);
  bool is_adopted() const { return adopted_; }

  // Maps a whole existing segment. SystemError(ENOENT) if there is none, or if its size is not set
  // yet. MismatchError for another user's segment, or another file type.
  static Segment open(const std::string& name);

  // As open(), but does not map: bytes() is empty until map() returned true. map() returns false if
  // the name now refers to another segment. first_word() is read from the file, 0 if there is none.
  // A read creates no page, which would be in the way of the creator's huge pages.
  static Segment find(const std::string& name);
  [[nodiscard]] bool map();
  std::uint64_t first_word() const;

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  // The owner unlinks the name if it still refers to this segment. Before that it ceases to be
  // known as its owner.
  ~Segment();

  const std::string& name() const { return name_; }
  std::span<std::byte> bytes() const;
  // A descriptor for flock(2) on the segment's file, which is independent of the claim. A forked
  // child gets a different one.
  int descriptor() const { return fd_; }
  bool is_owner() const;  // false in a forked child
  // Whether the name still refers to it. As a rule one system call (fstat(2)): a file that is
  // removed, replaced or moved gets another number of links or another time of change.
  bool has_name() const;
  bool owner_alive() const { return owner_pid() != 0; }  // also true in the owner itself
  // MismatchError if the name does not refer to it although its owner lives: it was removed,
  // or another file was put in its place. Allocates nothing.
  void require_name() const;
  // The pid of the living owner in its own PID namespace, for messages; 0 if there is none.
  pid_t owner_pid() const;

  // Claims the other end (a ring's consumer) during this object's lifetime. OwnedError with the pid
  // of the process that has it.
  void claim_peer();
  pid_t peer_pid() const;  // of the living reader, 0 if there is none

 private:
  Segment();
  bool is_mine(pid_t role) const;
  static Segment own(const std::string& name, std::size_t bytes, bool adopt, bool huge_pages);
  void open_guarded(int (*open)(const std::string& name));

  std::string name_;
  std::uint64_t made_in_;  // see fork_generation()
  pid_t owner_ = 0;        // this process if it is the owner, else 0; differs in a forked child
  pid_t peer_ = 0;
  bool unlinks_ = false;  // by the owner, at the end
  bool adopted_ = false;
  int fd_ = -1;
  // The file's time of change, in ns, when the name last led to it; 0 while that may be too recent.
  mutable std::atomic<std::int64_t> named_since_{0};
  std::unique_ptr<boost::interprocess::mapped_region> region_;  // null: nothing is mapped
};

// The buffer's lock, which is on the segment's own file. For as long as the segment is open.
inline FileLock lock_of(const Segment& buffer) {
  return {buffer.descriptor(), "/dev/shm" + buffer.name()};
}

}  // namespace moetap
