// The process-wide object of a class, for engines whose parts cannot pass an object around. It is
// not destroyed at exit, as its device or its memory could be gone by then: only destroy() ends it.
#pragma once

#include <moetap/error.h>

#include <memory>
#include <mutex>
#include <string>

namespace moetap::detail {

template <class T>
class Singleton {
 public:
  explicit Singleton(std::string name) : name_(std::move(name)) {}

  template <class... Arguments>
  T& create(Arguments&&... arguments) {
    const std::lock_guard lock(mutex_);
    if (object_) throw StateError("a " + name_ + " exists already; destroy() it first");
    object_ = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    return *object_;
  }

  T& instance() {
    const std::lock_guard lock(mutex_);
    if (!object_) throw StateError("there is no " + name_ + "; create() it first");
    return *object_;
  }

  void destroy() {
    const std::lock_guard lock(mutex_);
    object_.reset();
  }

 private:
  std::string name_;
  std::mutex mutex_;
  std::unique_ptr<T> object_;
};

}  // namespace moetap::detail
