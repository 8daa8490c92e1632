// Measures how long queued work takes.
#pragma once

#include <moetap/device.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace moetap::bench {

using Clock = std::chrono::steady_clock;

inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The time in us of one of `count` repetitions of queue(), as the median over rounds. The host only
// queues, and waits at the end, so this is the device's time unless queueing is slower.
template <class Queue>
double us_each(Stream& stream, int count, Queue&& queue) {
  constexpr int kRounds = 5;
  for (int i = 0; i < count; ++i) queue();  // a first round for everything that is loaded once
  stream.synchronize();
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) queue();
    stream.synchronize();
    rounds.push_back(us_since(start) / count);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace moetap::bench
