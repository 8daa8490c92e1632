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

#include "lib/internal/export.h"

namespace moetap {

// Steps that were dropped in succession, with no record handed over in between: `first`, `last` and
// possibly some steps between them. 0: none.
struct DropRun {
  Step first = 0;
  Step last = 0;
  std::uint64_t total = 0;     // steps that were dropped since the ring was made
  std::uint64_t given_up = 0;  // of these, given up by the engine
  bool operator==(const DropRun&) const = default;
};

// The kind of a ring record. The descriptor lies beside the record's bytes in the ring.
struct Descriptor {
  enum class Kind : std::uint32_t {
    step,         // a StepRecord of the `num_tokens` wanted tokens
    failed_step,  // the step failed: `text` says why, `slots` of its record lose their rows
    request,      // rows of positions [position, position + num_tokens) of `request`, above those
                  // of its earlier records: [states: 1 byte per row, padded to 64][rows]
    request_end,  // `request` finished; num_tokens: the sum over all its records, so that a lost
                  // one is noticed; position: rows from here on are valid only if all of them are
                  // asked for. A preempted or aborted request sends nothing.
    step_done,    // per-request host cache: the step's rows are in the worker's cache
  };
  Kind kind = Kind::step;
  Step step = 0;
  std::int64_t num_tokens = 0;
  RequestId request = 0;
  std::int64_t position = 0;
  DropRun dropped{};    // between the previous record and this one; written by commit()
  char text[224] = {};  // zero-terminated
};

// Each end belongs to the process that made it; in a forked child it does nothing. acquire(),
// peek() and release() are a StateError there, and commit() terminates the child.
class MOETAP_INTERNAL_API ChannelProducer {
 public:
  // Creates the ring: endpoint.ring_depth records of endpoint.max_tokens rows.
  explicit ChannelProducer(const Endpoint& endpoint);
  ~ChannelProducer();

  std::span<std::byte> memory() const;  // everything, for pinning

  // The next free record's bytes, to be filled by the host or by a copy. While the ring is full it
  // waits (spins, then sleeps) up to `timeout`, or endpoint.timeout. Then TimeoutError with the
  // ring's depth, the oldest step in it, the consumer's pid and the lease that it waits for, if
  // any. MismatchError if the consumer's counter is not valid, or the ring has lost its name. One
  // thread.
  [[nodiscard]] std::span<std::byte> acquire(Milliseconds timeout);
  [[nodiscard]] std::span<std::byte> acquire();

  // Takes back the last acquired record, which will not be handed over. In acquire()'s thread,
  // before anything else is acquired or dropped.
  void give_back() noexcept;

  // Whether acquire() would return at once. MismatchError as acquire(), and in its thread.
  bool has_room();

  // Whether a living consumer is attached. Any thread. A system call.
  bool has_reader() const;

  // Tells the consumer that these steps are dropped. They come after all acquired records and
  // before any later one. They have no record, as there is no room. `total` and `given_up` count
  // these steps. In acquire()'s thread, with ascending steps. Never waits.
  void drop(const DropRun& steps) noexcept;
  DroppedSteps dropped() const;  // in acquire()'s thread

  // Hands over the oldest acquired record. Any one thread at a time, in the order of acquire().
  // Never blocks, so that a stream's callback may call it. Terminates the process if there is no
  // acquired record, or if it is a forked child.
  void commit(const Descriptor& descriptor) noexcept;

  // Returns when every acquired record is committed. TimeoutError. In acquire()'s thread.
  void wait_committed(Milliseconds timeout);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class ChannelConsumer {
 public:
  // Attaches; see <moetap/read_transport.h> for its errors. OwnedError with the first consumer's
  // pid if there is one already. A consumer that takes over from an earlier one continues where
  // that one stopped.
  explicit ChannelConsumer(const Endpoint& endpoint);
  ~ChannelConsumer();

  // Whether records had been released before it attached.
  bool took_over() const;

  // The oldest record not yet released, or null. Valid until release(). MismatchError for a
  // descriptor or counter that our producer cannot have written; the ring is unusable then. Also
  // if the ring has lost its name under a living producer, which is looked at every kLook while no
  // record waits.
  struct Item {
    const Descriptor& descriptor;  // a checked copy: kinds and sizes are in range
    std::span<std::byte> bytes;
  };
  [[nodiscard]] const Item* peek();

  // Call it after copying what is needed of the item, and before using or showing any of it.
  // MismatchError if the producer has reused the record since peek(), which happens if another
  // process writes to the ring's counters. The ring is unusable then.
  void require_unchanged() const;

  void release();

  // Steps that were dropped after the last released record, if no further record has arrived;
  // otherwise the next item says so. MismatchError as peek().
  DropRun dropped() const;

  // Returns true when peek() would return a record or dropped() has changed since `known`. Returns
  // false when nothing arrived within the timeout, or the producer is dead so that nothing can.
  bool wait(Milliseconds timeout, const DropRun& known = {});
  bool producer_alive() const;

  // Shows in the producer's error for a full ring why this end does not release records: rows are
  // lent, the oldest of `leases` to `holder`. 0: no leases any more. Any one thread at a time.
  void show_leases(std::size_t leases, std::string_view holder,
                   std::chrono::steady_clock::time_point since) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap
