// What the processes of a crash test have in common: which rows each step has, and a few words of
// shared memory to tell each other how far they are.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace moetap::crash {

enum class Transport : std::uint8_t { shm, wire, device, request };
enum class Side : std::uint8_t { worker, reader };

// Where a process is killed: at which passing of a named point of the library, or by its parent
// after a random time.
struct Case {
  Transport transport;
  Side side;
  const char* point;          // nullptr: anywhere
  int most_passings = 1;      // which one is drawn; 1 for what a process does once
  bool rows_missing = false;  // the rows of the step that was under way must be
};
std::string name_of(const Case& c);

struct Setup {
  Case kill;
  std::uint64_t seed;
  Endpoint endpoint;
  bool dry = false;  // no process is killed: what the victim passes is counted
};

inline constexpr int kMostKills = 250;  // of one session

// In anonymous shared memory. Workers are numbered by generation, 1, 2, …; only one lives at a
// time.
struct Shared {
  std::atomic<bool> stop{false};
  std::atomic<std::uint32_t> dead{0};      // generations up to this have ended
  std::atomic<std::uint32_t> attached{0};  // the last one that a reader has verified a row of
  std::atomic<std::uint32_t> lost{0};      // the last one that a reader has seen the end of
  std::atomic<std::uint32_t> verified{0};  // steps of `attached`
  std::atomic<std::uint64_t> rows{0};      // verified in all
  std::array<std::atomic<bool>, 2 * kMostKills + 2> killed_at_point{};

  std::atomic<std::uint64_t> timeouts{0};  // of publish()
  // How long publish() took: calls of [2^(i/8), 2^((i+1)/8)) ns.
  static constexpr std::size_t kTimes = 320;
  std::array<std::atomic<std::uint64_t>, kTimes> publish_times{};

  struct Passings {
    char point[40];
    int times;
  };
  std::array<Passings, 64> passed{};  // in a dry run; ends with one without a name
};

std::uint64_t mix(std::uint64_t seed, std::uint64_t number);

// Distinct slots of a step, the same in each generation: some runs, some scattered.
std::vector<Slot> slots_of_step(std::uint64_t seed, Step step);

// The ids of a row say what it is: its generation, step and slot, and a hash of the three.
inline constexpr std::size_t kRowIds = 6;
using Row = std::array<std::uint16_t, kRowIds>;
Row row_of(std::uint32_t generation, Step step, Slot slot);
// Rows that a reader put, not a worker.
inline constexpr std::uint32_t kPut = 60'000;
inline constexpr Slot kFirstPutSlot = 32;

// Steps that lack a layer, so that they fail, and two in a row that the worker gives up.
inline constexpr std::uint64_t kFailEvery = 5;
inline constexpr std::uint64_t kGiveUpEvery = 10;
inline bool lacks_layer(Step step) { return step.value() % kFailEvery == 3; }
inline bool is_given_up(Step step) { return step.value() % kGiveUpEvery / 2 == 2; }
inline bool fails(Step step) { return lacks_layer(step) || is_given_up(step); }

// Ends this process as one that has found a wrong row or another broken promise.
inline constexpr int kWrong = 3;
[[noreturn]] void wrong(const Setup& setup, const std::string& what);

// A wait that began then must have ended by now: the timeout, and what a busy machine takes.
void check_in_time(const Setup& setup, std::chrono::steady_clock::time_point began,
                   const std::string& what);

// From now on the process is killed at its `passing`-th passing of the case's point, once armed.
// Call before the process has a second thread.
void kill_here(const Case& c, int passing);
void arm();
// Counts the points that the process passes. Likewise.
void count_passings(Shared& shared);
// Takes its time where it has the lock for reading, so that a worker has to wait. Likewise.
void linger_with_the_lock();

// What a process does. A worker publishes until told to stop, or `most_steps` of them.
void run_worker(const Setup& setup, Shared& shared, std::uint32_t generation, Step most_steps,
                bool arm_at_once);
// A reader follows whatever worker there is, checks every row, and attaches to the next.
void run_reader(const Setup& setup, Shared& shared, int most_steps);

}  // namespace moetap::crash
