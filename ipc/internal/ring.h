// The ring's bytes in shared memory: [RingControl][descriptors: depth][records: depth]. Only its
// two ends know this layout.
//
// Records have numbers that count up from 0 and never wrap. Record n is at index n % depth.
//
//        released            committed            acquired (the producer's own)
//   ... ----+--------------------+--------------------+----
//           | the consumer's     | being filled       | free, while acquired - released < depth
//
// The order of its loads, stores and fences is checked in test/model (ring, marks).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "ipc/internal/channel.h"
#include "ipc/internal/wait.h"
#include "ipc/reader/lease_note.h"
#include "ipc/ring/drop_note.h"
#include "ipc/segment/control.h"
#include "lib/internal/step_record.h"

namespace moetap {

inline constexpr std::uint64_t kRingMagic = 0x676e69722d74706dull;  // "mpt-ring"
inline constexpr std::uint32_t kRingVersion = 7;

// Each counter and wake word has its own cache line. The consumer spins on `committed`, and would
// otherwise slow down the producer's other writes (false sharing), and vice versa.
inline constexpr std::size_t kCacheLine = 64;

static_assert(sizeof(Descriptor) == 296 && std::is_trivially_copyable_v<Descriptor>);

struct RingControl {
  alignas(kCacheLine) ControlHead head;
  alignas(kCacheLine) std::atomic<std::uint64_t> committed{0};  // written by the producer
  alignas(kCacheLine) WakeWord published;                       // ... and wakes the consumer
  alignas(kCacheLine) std::atomic<std::uint64_t> released{0};   // written by the consumer
  alignas(kCacheLine) WakeWord freed;                           // ... and wakes the producer
  alignas(kCacheLine) LeaseNote lent;                           // ... why it takes in no records
  alignas(kCacheLine) DropNote drops;                           // written by the producer
};

// The mark of an index: which record it has, so that each record shows by itself whether it can be
// read. The counters are shared memory, and a stray write there must not make one record pass for
// another. The producer sets the mark before it writes the record. The consumer checks it before
// and after it reads.
class RecordMark {
 public:
  // For the producer: before the first byte of record `number`, and after the last.
  void begin(std::uint64_t number) {
    value_.store(2 * number + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  void finish(std::uint64_t number) { value_.store(2 * number + 2, std::memory_order_release); }

  // For the consumer: before it reads, and whether everything it read was this record.
  bool is_there(std::uint64_t number) const {
    return value_.load(std::memory_order_acquire) == 2 * number + 2;
  }
  bool was_there(std::uint64_t number) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return value_.load(std::memory_order_relaxed) == 2 * number + 2;
  }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct alignas(kCacheLine) RingDescriptor {
  Descriptor value;
  RecordMark mark;
};

// The addresses in a mapping of the ring. A view: owns nothing.
class Ring {
 public:
  // For a segment of at least bytes(endpoint), which this endpoint's producer created.
  Ring(std::span<std::byte> memory, const Endpoint& endpoint);

  static std::size_t bytes(const Endpoint& endpoint);

  RingControl& control() const { return *reinterpret_cast<RingControl*>(memory_); }
  std::uint64_t depth() const { return depth_; }
  Descriptor& descriptor(std::uint64_t number) const { return place(number).value; }
  RecordMark& mark(std::uint64_t number) const { return place(number).mark; }
  std::span<std::byte> record(std::uint64_t number) const {
    return {memory_ + records_ + (number % depth_) * stride_, record_bytes_};
  }

 private:
  RingDescriptor& place(std::uint64_t number) const {
    return reinterpret_cast<RingDescriptor*>(memory_ + sizeof(RingControl))[number % depth_];
  }

  std::byte* memory_;
  std::uint64_t depth_;
  std::size_t record_bytes_;
  std::size_t stride_;   // whole pages, so that device copies of two records share no page
  std::size_t records_;  // offset of the first
};

}  // namespace moetap
