// Thousands of random histories of an engine and its ledger alone, each row of each checked
// (H8-H11, H16-H19, H29, H30, H39): the simulation's engine with a worker and a buffer that are
// next to nothing, so that a fault of the ledger is found in a second and is its own.
#include <gtest/gtest.h>

#include <cstring>
#include <exception>

#include "test/lib/slot_memory.h"
#include "test/simulation/engine.h"

namespace moetap {
namespace {

using namespace simulation;  // NOLINT(google-build-using-namespace): all of it is
using test::SlotMemory;

constexpr Router kRouter{2, 2, 256};  // whose rows are numbers of four bytes, as SlotMemory's

// Runs a step at once; the rows that are not wanted are not published.
class MemoryWorker final : public Worker {
 public:
  MemoryWorker(SlotMemory& memory, Oracle& oracle, Dice& dice, Counts& counts)
      : memory_(memory), oracle_(oracle), dice_(dice), counts_(counts) {}

  bool run(const StepWork& work) override {
    const bool failed = dice_.chance(5);
    SlotRows rows;
    std::vector<Slot> slots;
    std::vector<std::pair<Slot, std::uint32_t>> numbers;
    for (const TokenRange& range : work.wanted) {
      for (std::int64_t i = range.start; i < range.end; ++i) {
        const auto& [slot, row] = work.rows.at(static_cast<std::size_t>(i));
        rows.emplace_back(slot, failed ? nullptr : row);
        slots.push_back(slot);
        numbers.emplace_back(slot, 0);
        std::memcpy(&numbers.back().second, kRouter.row(row->number).data(), sizeof(std::uint32_t));
      }
    }
    if (slots.empty()) return true;
    failed ? memory_.fail(work.step, slots) : memory_.publish(work.step, numbers);
    counts_[Event::failed_steps] += failed;
    oracle_.publish(0, work.step, rows, failed);
    oracle_.took_in(0, work.step);
    return true;
  }
  void accept(Step, RequestId, std::int64_t, std::span<const std::int64_t>) override {}
  void end_request(RequestId, RequestEnd) override {}
  void go_on() override {}

 private:
  SlotMemory& memory_;
  Oracle& oracle_;
  Dice& dice_;
  Counts& counts_;
};

void run_history(std::uint64_t seed, Counts& counts) {
  Dice dice(seed);
  History history;
  Trace trace(history, 0);
  const EngineOptions options = EngineOptions::draw(dice);
  Oracle oracle(kRouter, options.num_blocks * kBlock, 1);
  auto memory = std::make_unique<SlotMemory>(options.num_blocks * kBlock);
  MemoryWorker worker(*memory, oracle, dice, counts);
  Engine engine(options, {dice, counts, history, trace, oracle, worker, std::move(memory)});
  for (int i = 0; i < 60; ++i) engine.tick();
  engine.finish();
}

TEST(LedgerRandom, NoHistoryMakesAWrongRowClaimToBeRight) {
  Counts counts;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    try {
      run_history(seed, counts);
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what();
    }
  }
  // Everything happened, and often: else the above says little.
  for (const Event event :
       {Event::present,     Event::missing,      Event::stale,        Event::clobbered,
        Event::prefix_hits, Event::preemptions,  Event::aborts,       Event::finished,
        Event::rejected,    Event::corrected,    Event::misreported,  Event::tree_moves,
        Event::kept,        Event::sampled_late, Event::moves,        Event::rows_moved,
        Event::copies,      Event::fills,        Event::flushes,      Event::forgotten,
        Event::taken_early, Event::held_back,    Event::failed_steps, Event::guessed_again,
        Event::guessed_low, Event::uncovered}) {
    EXPECT_GT(counts[event], 1000) << kEventNames[static_cast<std::size_t>(event)];
  }
  EXPECT_GT(counts[Event::present],
            counts[Event::missing] + counts[Event::stale] + counts[Event::clobbered]);
}

}  // namespace
}  // namespace moetap
