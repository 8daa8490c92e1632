// Copies shared memory before it is checked, as other processes may change it: what was checked is
// then what is used.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <type_traits>

namespace moetap {

// The compiler must not read the shared bytes again for a value that it has copied.
inline void forget_shared() { std::atomic_signal_fence(std::memory_order_seq_cst); }

template <class T>
T private_copy(const T& shared) {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(&copy, &shared, sizeof copy);
  forget_shared();
  return copy;
}

template <class T>
void private_copy(std::span<const T> shared, std::span<T> to) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::ranges::copy(shared, to.begin());
  forget_shared();
}

}  // namespace moetap
