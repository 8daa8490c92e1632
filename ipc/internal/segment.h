// A named piece of POSIX shared memory with an owner.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moetap {

// Creates (and owns) or opens a segment. The owner has a claim on it for its whole life (an open
// file description lock, fcntl(2)), which the kernel releases when the process dies, and which its
// forked children do not get: a segment without a claim has no living owner and is reclaimed by the
// next create(), whatever pids say. Anyone can ask who has it without taking it. Movable.
class Segment {
 public:
  // Reserves `bytes` (posix_fallocate, never SIGBUS later), mode 0600, zero-filled. Before that it
  // removes what dead owners left: this name, and all of the user's that begin with "/moetap_". The
  // name is a '/' and then letters, digits, '-', '_' and '.'.
  // OwnedError with the living owner's pid; SystemError with the bytes needed and free, and what to
  // change, if /dev/shm is too small; MismatchError for another user's segment; ArgumentError for
  // a bad name or size.
  // huge_pages: see Endpoint. Rounds `bytes` up to whole ones.
  static Segment create(const std::string& name, std::size_t bytes, bool huge_pages = false);

  // As create(), but an existing segment of exactly `bytes` without an owner is kept as it is and
  // becomes the caller's. One that another program made is not removed at the end, and of another
  // size a MismatchError.
  static Segment create_or_adopt(const std::string& name, std::size_t bytes);

  // Maps an existing one, whole. SystemError(ENOENT) if there is none, or none of a size yet;
  // MismatchError for a segment of another user or type.
  static Segment open(const std::string& name);

  // As open(), but maps nothing yet: bytes() is empty until map() was true, which it is unless the
  // name leads to another segment by now. first_word() is read, not mapped, 0 if there is none: to
  // look at what is not mapped makes no page, which would be in the way of a creator's huge ones.
  static Segment find(const std::string& name);
  bool map();
  std::uint64_t first_word() const;

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();  // the owner unlinks the name, if it still is this segment's

  const std::string& name() const { return name_; }
  std::span<std::byte> bytes() const;
  // For flock(2) on its file, which has nothing to do with the claim. A forked child's is another.
  int descriptor() const { return fd_; }
  bool is_owner() const;                                 // this process, not a fork of the owner
  bool owns_name() const;                                // as above, and the name leads to it
  bool owner_alive() const { return owner_pid() != 0; }  // also true in the owner itself
  // Of the living owner as its own PID namespace has it, for messages; 0 if there is none.
  pid_t owner_pid() const;

  // Becomes the one process at the other end (a ring's consumer) for as long as this object lives.
  // OwnedError with the pid of the one that is there.
  void claim_peer();
  pid_t peer_pid() const;  // of the living one, 0 if there is none

 private:
  Segment();
  bool is_mine(pid_t role) const;
  static Segment own(const std::string& name, std::size_t bytes, bool adopt, bool huge_pages);
  void open_guarded(int (*open)(const std::string& name));

  std::string name_;
  std::uint64_t made_in_;  // see fork_generation()
  pid_t owner_ = 0;        // this process if it is the owner, else 0; a forked child is not
  pid_t peer_ = 0;
  bool unlinks_ = false;  // at the end, as the owner
  int fd_ = -1;
  boost::interprocess::mapped_region region_;
};

}  // namespace moetap
