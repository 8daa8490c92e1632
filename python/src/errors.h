// Each exception of the C++ library becomes the class of the same name in moetap.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "python/src/common.h"

namespace moetap::python {

// Once in each interpreter, when moetap._reader is imported.
void translate_errors();

// The error of one item of a batch. Python gets the error itself, with `index` and `done`.
class BatchError : public std::exception {
 public:
  BatchError(std::exception_ptr cause, std::size_t index, std::size_t size, nb::object done)
      : cause_(std::move(cause)),
        index_(index),
        size_(size),
        done_(std::make_shared<nb::object>(std::move(done))) {}

  const std::exception_ptr& cause() const { return cause_; }
  std::size_t index() const { return index_; }
  std::size_t size() const { return size_; }
  const nb::object& done() const { return *done_; }
  const char* what() const noexcept override { return "an item of a batch failed"; }

 private:
  std::exception_ptr cause_;
  std::size_t index_;
  std::size_t size_;
  std::shared_ptr<nb::object> done_;  // copied with the GIL or without it
};

}  // namespace moetap::python
