// A scheduler, its data-parallel workers, their device and the channels between them, in one thread
// and from one number.
#pragma once

#include <moetap/block_store.h>
#include <moetap/host_device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "test/simulation/counts.h"
#include "test/simulation/dice.h"
#include "test/simulation/engine.h"
#include "test/simulation/history.h"
#include "test/simulation/stage.h"

namespace moetap::simulation {

class Simulation {
 public:
  Simulation(std::uint64_t seed, Counts& counts, History& history);
  ~Simulation();

  // Runs to the end. Failure if anything is wrong.
  void run();

 private:
  // A data-parallel worker with its stages, and the engine that schedules for it.
  class Replica;

  ModelShape draw_shape();
  void tick();
  void check_leftovers() const;

  const std::int64_t open_files_;  // before anything else was
  Dice dice_;
  Counts& counts_;
  History& history_;
  std::string instance_;
  std::unique_ptr<SeededDevice> device_;
  ModelShape shape_;
  Router router_;
  std::unique_ptr<BlockStore> store_;
  std::map<std::vector<int>, RowRefs> stored_;
  std::vector<std::unique_ptr<Replica>> replicas_;
};

struct Outcome {
  std::uint64_t hash = 0;
  std::string failure;  // empty: none
};
Outcome simulate(std::uint64_t seed, Counts& counts,
                 History::Prints prints = History::Prints::nothing);

}  // namespace moetap::simulation
