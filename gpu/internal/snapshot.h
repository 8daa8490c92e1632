// A step that a transport delivers from the device cache.
#pragma once

#include <moetap/types.h>

#include <cstddef>
#include <cstdint>

#include "gpu/internal/device_cache.h"
#include "gpu/internal/wanted_tokens.h"

namespace moetap {

// The open step of a Capturer. Valid during the call that it is passed to.
class Snapshot {
 public:
  Snapshot(DeviceCache& cache, const WantedTokens& wanted, const Slot* slot_mapping)
      : cache_(cache), wanted_(wanted), slot_mapping_(slot_mapping) {}

  Step step() const { return cache_.step(); }
  std::int64_t num_tokens() const { return cache_.num_tokens(); }
  const WantedTokens& wanted() const { return wanted_; }
  std::int64_t num_rows() const { return wanted_.count(); }   // of the wanted tokens
  const Slot* slot_mapping() const { return slot_mapping_; }  // device memory, or null

  // Where the list of wanted tokens is, if not all are wanted: uint32 each.
  struct TokenList {
    std::uint32_t* host;  // pinned; may be overwritten once the snapshot was taken
    std::uint32_t* device;
  };

  // Queues the StepRecord of the step, num_rows() rows, into `record` (device memory).
  void write(std::byte* record, std::int64_t num_slots, TokenList list, Stream& stream) const {
    const std::uint32_t* tokens = nullptr;
    if (!wanted_.all()) {
      wanted_.list(list.host);
      stream.copy(list.device, list.host, WantedTokens::list_bytes(num_rows()));
      tokens = list.device;
    }
    cache_.snapshot(slot_mapping_, num_rows(), num_slots, record, stream, tokens);
  }

 private:
  DeviceCache& cache_;
  const WantedTokens& wanted_;
  const Slot* slot_mapping_;
};

}  // namespace moetap
