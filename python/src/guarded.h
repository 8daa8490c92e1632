// Objects of the C++ library that one thread, and only the process that made them, may use.
#pragma once

#include <moetap/error.h>

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "python/src/common.h"

namespace moetap::python {

// A number that differs between a process and its forked children.
inline std::uint64_t forks() {
  static std::atomic<std::uint64_t> count{0};
  static const bool watching =
      pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); }) == 0;
  static_cast<void>(watching);
  return count.load(std::memory_order_relaxed);
}

// Owns an object, and refuses each use that could harm it: after close(), in a forked child, or
// while another thread's call runs. A forked child never destroys it, as its threads are missing.
template <class T>
class Guarded {
 public:
  enum class Threads : std::uint8_t { one, any };  // any: the object itself keeps them apart

  Guarded(std::unique_ptr<T> object, std::string what, Threads threads = Threads::one)
      : object_(std::move(object)), what_(std::move(what)), threads_(threads) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { destroy(); }

  // The object during one call.
  class Use {
   public:
    explicit Use(Guarded& of) : of_(of) { of.enter(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { of_.users_.fetch_sub(1, std::memory_order_release); }
    T* operator->() const { return of_.object_.get(); }
    T& operator*() const { return *of_.object_; }

   private:
    Guarded& of_;
  };
  Use use() { return Use(*this); }

  // For destructors, which cannot throw: waits until no other thread's call runs. With the GIL. In
  // an interpreter that ends, such a call is over but does not return: see ReleasedGil.
  void wait_until_free() {
    while (made_in_ == forks() && !interpreter_ends() &&
           users_.load(std::memory_order_acquire) > 0) {
      const ReleasedGil release;
      std::this_thread::yield();
    }
  }

  // While one exists, the object has lent something, and close() is a StateError.
  class Loaned {
   public:
    explicit Loaned(Guarded& of) : of_(of) { of_.loans_.fetch_add(1, std::memory_order_relaxed); }
    Loaned(const Loaned&) = delete;
    Loaned& operator=(const Loaned&) = delete;
    ~Loaned() { of_.loans_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    Guarded& of_;
  };

  const std::string& what() const { return what_; }
  bool closed() const { return object_ == nullptr; }

  // Destroys the object, without the GIL. Does nothing if it is closed.
  void close() {
    if (closed()) return;
    std::unique_ptr<T> object;
    {
      const Use use(*this);
      if (users_.load(std::memory_order_acquire) > 1) throw_busy();
      if (const int loans = loans_.load(std::memory_order_relaxed); loans > 0) {
        throw StateError(
            fmt::format("{} cannot be closed: {} of its views or their arrays are out; release() "
                        "or delete them first",
                        what_, loans));
      }
      object = std::move(object_);
    }
    const ReleasedGil release;
    object.reset();
  }

 protected:
  // For destructors of classes whose members the object uses: they call it first.
  void destroy() {
    if (made_in_ != forks()) static_cast<void>(object_.release());
    object_.reset();
  }

 private:
  void enter() {
    if (made_in_ != forks()) throw_forked();
    if (users_.fetch_add(1, std::memory_order_acquire) > 0 && threads_ == Threads::one) {
      leave();
      throw_busy();
    }
    if (object_ == nullptr) {
      leave();
      throw StateError(what_ + " was closed; make a new one");
    }
  }
  void leave() { users_.fetch_sub(1, std::memory_order_release); }

  [[noreturn]] void throw_busy() const {
    throw StateError(what_ +
                     " is in a call of another thread; only one thread at a time may use it");
  }
  [[noreturn]] void throw_forked() const {
    throw StateError(
        fmt::format("{} was made by another process, of which this one ({}) is a fork: only that "
                    "one may use it; make one after the fork, in the process that uses it",
                    what_, getpid()));
  }

  std::unique_ptr<T> object_;
  std::string what_;
  Threads threads_;
  std::uint64_t made_in_ = forks();
  std::atomic<int> users_{0};
  std::atomic<int> loans_{0};
};

}  // namespace moetap::python
