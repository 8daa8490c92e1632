// The setup of benchmarks. It is made once for all consecutive benchmarks that use it, and
// destroyed before the next one is made: each has its own buffers, threads and processes.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace moetap::bench {

struct CurrentFixture {
  std::string key;
  std::shared_ptr<void> object;
  void clear() {
    object.reset();
    key.clear();
  }
};

inline CurrentFixture& current_fixture() {
  static CurrentFixture current;
  return current;
}

// The Fixture of this key. The arguments must be determined by the key.
template <class Fixture, class... Arguments>
Fixture& fixture(const std::string& key, Arguments&&... arguments) {
  CurrentFixture& current = current_fixture();
  if (current.key != key) {
    current.clear();
    current.object = std::make_shared<Fixture>(std::forward<Arguments>(arguments)...);
    current.key = key;
  }
  return *static_cast<Fixture*>(current.object.get());
}

}  // namespace moetap::bench
