#include "ipc/internal/ring.h"

#include "lib/internal/numbers.h"

namespace moetap {
namespace {

constexpr std::size_t kPage = 4096;

using detail::round_up;

std::size_t records_offset(const Endpoint& endpoint) {
  return round_up(
      sizeof(RingControl) + static_cast<std::size_t>(endpoint.ring_depth) * sizeof(RingDescriptor),
      kPage);
}

}  // namespace

Ring::Ring(std::span<std::byte> memory, const Endpoint& endpoint)
    : memory_(memory.data()),
      depth_(static_cast<std::uint64_t>(endpoint.ring_depth)),
      record_bytes_(StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes),
      stride_(round_up(record_bytes_, kPage)),
      records_(records_offset(endpoint)) {}

std::size_t Ring::bytes(const Endpoint& endpoint) {
  const std::size_t record = StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes;
  return records_offset(endpoint) +
         static_cast<std::size_t>(endpoint.ring_depth) * round_up(record, kPage);
}

}  // namespace moetap
