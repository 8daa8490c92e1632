// Where all that a simulation does comes from.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>

namespace moetap::simulation {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number() { return random_(); }
  // 0 … most
  std::int64_t draw(std::int64_t most) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most + 1));
  }
  bool chance(int percent) { return draw(99) < percent; }
  template <class Container>
  auto& any_of(Container& container) {
    return *std::next(std::begin(container),
                      draw(static_cast<std::int64_t>(std::size(container)) - 1));
  }
  std::mt19937_64& generator() { return random_; }

 private:
  std::mt19937_64 random_;
};

}  // namespace moetap::simulation
