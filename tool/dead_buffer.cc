#include "tool/dead_buffer.h"

#include <moetap/error.h>
#include <moetap/file_lock.h>
#include <moetap/read_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <shared_mutex>

#include "ipc/internal/native_layout.h"
#include "ipc/internal/shm_ends.h"
#include "ipc/internal/stored_lock.h"

namespace moetap::tool {
namespace {

// None if somebody has removed its file: whoever puts rows then still locks that.
std::optional<FileLock> lock_of(const SegmentFile& file) {
  using StoredPath = std::array<char, sizeof(ShmControl::lock_path)>;
  const auto stored = file.at<StoredPath>(offsetof(ShmControl, lock_path));
  const auto path = stored_lock_path(file.name(), stored);
  return open_lock_file(path, file.at<FileLock::File>(offsetof(ShmControl, lock_file)));
}

// Whoever writes a row takes its stamp away before, and gives it one after.
void read_piece(const SegmentFile& file, const Endpoint& endpoint, std::span<const Slot> slots,
                StepWindow window, std::span<std::byte> rows, std::span<RowState> states) {
  const std::size_t row_bytes = endpoint.shape.row_bytes();
  const auto before = stamps_of(file, slots);
  std::atomic_thread_fence(std::memory_order_acquire);
  read_rows(file, endpoint.num_slots, row_bytes, slots, rows);
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto after = stamps_of(file, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    states[i] = before[i] == after[i] ? row_state(before[i], window) : RowState::missing;
    if (states[i] == RowState::present) continue;
    std::memset(&rows[i * row_bytes], 0xFF, row_bytes);
  }
}

}  // namespace

void read_dead(const SegmentFile& file, const Endpoint& endpoint, std::span<const Slot> slots,
               StepWindow window, Routes& routes) {
  const std::size_t row_bytes = endpoint.shape.row_bytes();
  const std::size_t most = rows_per_hold(row_bytes);
  std::optional<FileLock> lock = lock_of(file);
  for (std::size_t first = 0; first < slots.size(); first += most) {
    const std::size_t n = std::min(most, slots.size() - first);
    std::shared_lock<FileLock> held;
    if (lock) held = lock_shared_within(*lock, endpoint.limit);
    read_piece(file, endpoint, slots.subspan(first, n), window,
               routes.bytes().subspan(first * row_bytes, n * row_bytes),
               routes.states().subspan(first, n));
  }
  if (const pid_t owner = file.owner_pid(); owner != 0) {
    throw TimeoutError(
        fmt::format("{} was taken over by process {} meanwhile: ask again", file.name(), owner));
  }
}

}  // namespace moetap::tool
