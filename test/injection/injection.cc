#include "test/injection/injection.h"

#include <stdexcept>
#include <utility>

#include "lib/internal/injection.h"

namespace moetap::injection {
namespace {

std::string off;  // NOLINT(cert-err58-cpp): the default constructor does not throw
std::function<void(std::string_view)> callback;

}  // namespace

bool is_off(std::string_view guard) { return guard == off; }

void reach(std::string_view point) noexcept {
  if (callback) callback(point);
}

SwitchedOff::SwitchedOff(std::string guard) {
  if (!off.empty()) throw std::logic_error("two guards switched off at once: " + off);
  off = std::move(guard);
}

SwitchedOff::~SwitchedOff() { off.clear(); }

void on_point(std::function<void(std::string_view)> new_callback) {
  callback = std::move(new_callback);
}

}  // namespace moetap::injection
