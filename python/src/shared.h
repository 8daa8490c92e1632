// What Python has views of: the views keep it alive, and never see it change.
#pragma once

#include <moetap/routes.h>
#include <moetap/row_plan.h>

#include <memory>
#include <utility>

namespace moetap::python {

template <class T>
class Shared {
 public:
  explicit Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}

  const T& get() const { return *value_; }
  const std::shared_ptr<T>& owner() const { return value_; }

  // To change it: a copy of its own if a view or a call without the GIL has it too.
  T& change() {
    if (value_.use_count() > 1) value_ = std::make_shared<T>(*value_);
    return *value_;
  }

 private:
  std::shared_ptr<T> value_;
};

using SharedRoutes = Shared<Routes>;
using SharedMovePlan = Shared<MovePlan>;

}  // namespace moetap::python
