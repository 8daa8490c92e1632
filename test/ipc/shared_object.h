// An object that forked children share.
#pragma once

#include <sys/mman.h>

#include <new>
#include <stdexcept>

namespace moetap::test {

template <class T>
class SharedObject {
 public:
  SharedObject()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::runtime_error("mmap failed");
    object_ = new (memory_) T();
  }
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  ~SharedObject() { munmap(memory_, sizeof(T)); }

  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  void* memory_;
  T* object_ = nullptr;
};

}  // namespace moetap::test
