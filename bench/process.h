// A second process of a benchmark.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <functional>
#include <new>
#include <system_error>
#include <utility>

namespace moetap::bench {

// Runs body() in a forked child. Make it while this process has one thread. The child ends when
// body() returns or throws (which it reports), and is killed when its parent or this object ends.
class Process {
 public:
  explicit Process(const std::function<void()>& body);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  // std::runtime_error if the child has ended: a wait for it would never end.
  void require_alive();

 private:
  pid_t pid_;
};

// A T that both processes share; made before the fork.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    object_ = new (memory) T;
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(object_, sizeof(T)); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }

 private:
  T* object_;
};

}  // namespace moetap::bench
