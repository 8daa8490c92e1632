#include "tool/dead_buffer.h"

#include <moetap/read_rows.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ipc/internal/native_layout.h"
#include "ipc/internal/shm_ends.h"

namespace moetap::tool {
namespace {

void read_piece(const SegmentFile& file, const Endpoint& endpoint, std::span<const Slot> slots,
                StepWindow window, std::span<std::byte> rows, std::span<RowState> states) {
  const std::size_t row_bytes = endpoint.shape.row_bytes();
  const auto stamps = stamps_of(file, slots);
  read_rows(file, endpoint.num_slots, row_bytes, slots, rows);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    states[i] = row_state(stamps[i], window);
    if (states[i] == RowState::present) continue;
    std::memset(&rows[i * row_bytes], 0xFF, row_bytes);
  }
}

}  // namespace

void read_dead(const SegmentFile& file, const Endpoint& endpoint, std::span<const Slot> slots,
               StepWindow window, Routes& routes) {
  const std::size_t row_bytes = endpoint.shape.row_bytes();
  const std::size_t most = rows_per_hold(row_bytes);
  FileLock lock = file.lock();
  for (std::size_t first = 0; first < slots.size(); first += most) {
    const std::size_t n = std::min(most, slots.size() - first);
    const auto held = lock_shared_within(lock, endpoint.timeout);
    read_piece(file, endpoint, slots.subspan(first, n), window,
               routes.bytes().subspan(first * row_bytes, n * row_bytes),
               routes.states().subspan(first, n));
  }
}

}  // namespace moetap::tool
