// A segment with any bytes, to the tool that people look at segments with.

#include "ipc/internal/segment.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <new>
#include <string>

#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "test/fuzz/scribble.h"
#include "tool/inspection.h"

using namespace moetap;

namespace {

// What its worker would have made of it, if there is room.
void make(std::span<std::byte> memory, bool ring) {
  const Endpoint endpoint{
      .instance = "fuzz", .shape = ModelShape::uniform(3, 2, 16), .num_slots = 64, .max_tokens = 8};
  if (ring && memory.size() >= sizeof(RingControl)) {
    (new (memory.data()) RingControl)->head.publish(endpoint, kRingMagic, kRingVersion);
  } else if (!ring && memory.size() >= sizeof(ShmControl)) {
    (new (memory.data()) ShmControl)->head.publish(endpoint, kShmMagic, kShmVersion);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input({data, size});
  const bool ring = (input.take<std::uint8_t>() & 1) != 0;
  const std::size_t bytes = std::size_t{input.take<std::uint16_t>()} + 1;
  const std::string name = "/moetap_fuzz-" + std::to_string(getpid()) + (ring ? "_0_ring" : "_0");
  const Segment segment = Segment::create(name, bytes);
  make(segment.bytes(), ring);
  while (!input.empty()) fuzz::scribble(segment.bytes(), input);
  for (const SegmentInfo& info : find_segments()) {
    if (info.name != name) continue;
    const tool::Inspection found = tool::inspect(info);
    fuzz::require(!tool::to_text(found).empty(), "no text");
    fuzz::require(nlohmann::json::accept(tool::to_json(found).dump()), "no JSON");
  }
  return 0;
}
