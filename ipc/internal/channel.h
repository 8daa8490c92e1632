// The ring of records between a worker and its scheduler (device transport): single producer,
// single consumer, in shared memory, no lock. The producer owns it.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace moetap {

// Steps that were dropped one after the other, with no record handed over in between: `first`,
// `last` and perhaps some of those between them. 0: none.
struct DropRun {
  Step first = 0;
  Step last = 0;
  std::uint64_t total = 0;     // steps that were dropped since the ring was made
  std::uint64_t given_up = 0;  // of these by the engine, and not since the ring was full
  bool operator==(const DropRun&) const = default;
};

// What a ring record is. The descriptor lies beside its bytes in the ring.
struct Descriptor {
  enum class Kind : std::uint32_t {
    step,         // a StepRecord of `num_tokens`, those that are wanted
    failed_step,  // the step failed: `text` says why, `slots` of its record lose their rows
    request,      // rows of positions [position, position + num_tokens) of `request`, above those
                  // of its earlier records: [states: 1 byte a row, padded to 64][rows]
    request_end,  // `request` finished; num_tokens: of all its records, so that none can be lost.
                  // A preempted or aborted request sends nothing.
    step_done,    // per-request host cache: the step's rows are in the worker's cache
  };
  Kind kind = Kind::step;
  Step step = 0;
  std::int64_t num_tokens = 0;
  std::uint64_t request = 0;
  std::int64_t position = 0;
  DropRun dropped{};    // between the record before it and this one; written by commit()
  char text[224] = {};  // zero-terminated
};

// Both ends are of the process that makes them: in a forked child they hand over and take nothing.
// acquire(), peek() and release() are a StateError there, and commit() ends the child.
class ChannelProducer {
 public:
  // Creates the ring: endpoint.ring_depth records of endpoint.max_tokens rows.
  explicit ChannelProducer(const Endpoint& endpoint);
  ~ChannelProducer();

  std::span<std::byte> memory() const;  // everything, for pinning

  // The next free record's bytes, to be filled by the host or by a copy. Waits while the ring is
  // full (spin, then sleep) up to endpoint.limit: TimeoutError with the ring's depth, the oldest
  // step in it, the consumer's pid and the lease that it waits for, if any. MismatchError if the
  // consumer's end of the ring makes no sense. One thread.
  std::span<std::byte> acquire();

  // Takes back the last acquired record, which is not going to be handed over. acquire()'s thread,
  // before anything else is acquired or dropped.
  void give_back() noexcept;

  // Whether acquire() would return at once. MismatchError as there.
  bool has_room() const;

  // Tells the consumer that these steps are dropped, whose records would come after all that were
  // acquired and before any other: with no record of their own, since there is no room. `total` and
  // `given_up`: of these. acquire()'s thread; steps go up. Never waits.
  void drop(const DropRun& steps) noexcept;
  DroppedSteps dropped() const;  // acquire()'s thread

  // Hands over the oldest acquired record. Any one thread at a time, in the order of acquire();
  // never blocks, so that a stream's callback may call it. Without an acquired record, or in a
  // forked child: terminates.
  void commit(const Descriptor& descriptor) noexcept;

  // Returns when everything that was acquired is committed. TimeoutError. acquire()'s thread.
  void wait_committed(Milliseconds limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class ChannelConsumer {
 public:
  // Attaches; see readers.h for what it throws. A second consumer is an OwnedError with the first
  // one's pid. One that takes over from a consumer that is gone goes on where that one stood.
  explicit ChannelConsumer(const Endpoint& endpoint);
  ~ChannelConsumer();

  // Whether records had been released before it came.
  bool took_over() const;

  // The oldest record not yet released, or null. Valid until release(). MismatchError for a
  // descriptor or counter that no producer of ours writes; the ring is unusable then.
  struct Item {
    const Descriptor& descriptor;  // a checked copy: kinds and sizes are in range
    std::span<std::byte> bytes;
  };
  const Item* peek();

  // Call it after what is needed of the item was copied, and before anything of it is believed or
  // shown. MismatchError if the producer has used the record again since peek(), as it does when
  // others write to the ring's counters; the ring is unusable then.
  void require_unchanged() const;

  void release();

  // Steps that were dropped after the last record that was released, where no other is there yet;
  // else what peek() returns tells of them. MismatchError as there.
  DropRun dropped() const;

  // Returns when peek() would return a record or dropped() has changed since `known` (true), or
  // when nothing came within the limit or can come because the producer is dead (false).
  bool wait(Milliseconds limit, const DropRun& known = {});
  bool producer_alive() const;

  // Lets the producer's error of a full ring say who keeps this end from releasing records: rows
  // are lent, the oldest of `leases` to `holder`. 0: none any more. Any one thread at a time.
  void show_leases(std::size_t leases, std::string_view holder,
                   std::chrono::steady_clock::time_point since) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap
