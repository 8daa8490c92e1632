#include "wire_layout.h"

#include <moetap/error.h>

namespace moetap {
namespace {

template <class Id>
void widen_as(std::span<const std::byte> narrow, WireId* wire) {
  const auto* ids = reinterpret_cast<const Id*>(narrow.data());
  const std::size_t count = narrow.size() / sizeof(Id);
  for (std::size_t i = 0; i < count; ++i) wire[i] = ids[i];
}

// No early exit: the loop is vectorized, and a bad id is rare.
template <class Id>
bool narrow_as(std::span<const WireId> wire, std::uint32_t num_experts, std::byte* narrow) {
  auto* ids = reinterpret_cast<Id*>(narrow);
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < wire.size(); ++i) {
    const auto id = static_cast<std::uint32_t>(wire[i]);
    bad |= static_cast<std::uint32_t>(id >= num_experts);
    ids[i] = static_cast<Id>(id);
  }
  return bad == 0;
}

}  // namespace

void widen(IdType type, std::span<const std::byte> narrow, WireId* wire) {
  if (type == IdType::uint8) {
    widen_as<std::uint8_t>(narrow, wire);
  } else {
    widen_as<std::uint16_t>(narrow, wire);
  }
}

bool narrow_ids(std::span<const WireId> wire, int num_experts, IdType type, std::byte* narrow) {
  const auto limit = static_cast<std::uint32_t>(num_experts);
  return type == IdType::uint8 ? narrow_as<std::uint8_t>(wire, limit, narrow)
                               : narrow_as<std::uint16_t>(wire, limit, narrow);
}

}  // namespace moetap
