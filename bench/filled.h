// A reader whose whole working set has been published.
#pragma once

#include <moetap/reader.h>

#include <memory>
#include <string_view>

#include "bench/workload.h"

namespace moetap::bench {

class FilledReader {
 public:
  // transport: "shm" or "device". The worker's host half is in this process; reading does not need
  // it.
  FilledReader(std::string_view transport, const ModelShape& shape, std::int64_t num_slots);
  ~FilledReader();

  void read(std::uint64_t i, std::int64_t tokens);
  bool all_present(std::int64_t tokens) const;  // of the last read

  // Publishes another step of `tokens` rows, and takes it in.
  void publish(std::uint64_t i, std::int64_t tokens);

  const ModelShape& shape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap::bench
