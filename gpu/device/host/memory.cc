#include "gpu/device/host/memory.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "ipc/internal/system_limits.h"

namespace moetap::host {

void* Memory::allocate(std::size_t bytes, std::size_t alignment, Kind kind) {
  void* data = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
  if (data == nullptr) {
    throw SystemError(ENOMEM, fmt::format("cannot allocate {} bytes of host device memory{}", bytes,
                                          limit_on_map(ENOMEM, bytes, Mapped::own)));
  }
  std::memset(data, std::to_integer<int>(kPoison), bytes);
  const std::lock_guard lock(mutex_);
  pieces_.emplace(static_cast<std::byte*>(data), Piece{bytes, alignment, kind});
  return data;
}

void Memory::release(void* data) {
  std::unique_lock lock(mutex_);
  const auto piece = pieces_.extract(static_cast<std::byte*>(data));
  lock.unlock();
  ::operator delete(data, std::align_val_t(piece.mapped().alignment));
}

void Memory::add(void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto* const start = static_cast<std::byte*>(data);
  const auto next = pieces_.lower_bound(start + bytes);
  if (next != pieces_.begin()) {
    const auto& [other, piece] = *std::prev(next);
    if (other + piece.bytes > start) {
      throw ArgumentError(
          fmt::format("cannot pin {} bytes at {}: they overlap {} bytes at {} that are this "
                      "device's or pinned already",
                      bytes, data, piece.bytes, static_cast<const void*>(other)));
    }
  }
  pieces_.emplace(start, Piece{bytes, 0, Kind::host});
}

void Memory::remove(void* data) {
  const std::lock_guard lock(mutex_);
  pieces_.erase(static_cast<std::byte*>(data));
}

Memory::Kind Memory::require(const char* what, const void* data, std::size_t bytes) const {
  if (bytes == 0) return Kind::device;
  const auto* const start = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  const auto next = pieces_.upper_bound(start);
  if (next != pieces_.begin()) {
    const auto& [piece_start, piece] = *std::prev(next);
    const auto offset = static_cast<std::size_t>(start - piece_start);
    if (offset < piece.bytes && bytes <= piece.bytes - offset) return piece.kind;
    if (offset < piece.bytes) {
      throw ArgumentError(
          fmt::format("{} of {} bytes at offset {} of a buffer of {} bytes: keep it inside", what,
                      bytes, offset, piece.bytes));
    }
  }
  throw ArgumentError(
      fmt::format("{} of {} bytes at {}: that is not memory of this device; take it from "
                  "allocate(), allocate_pinned() or pin()",
                  what, bytes, data));
}

}  // namespace moetap::host
