// Kills one side again and again while the other one lives.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "test/crash/setup.h"

namespace moetap::crash {

struct Outcome {
  int killed = 0;           // at the point (or anywhere, if the case says so)
  std::uint64_t rows = 0;   // verified by readers
  Milliseconds noticed{0};  // the longest that a reader took to see that its worker was dead
};

// `kills` processes (at most kMostKills) one after the other, each to be killed at a passing drawn
// from the seed; each next one takes over. The last is let live until three steps of it have been
// verified. Failures of GoogleTest for a process that ends otherwise than it should, does not end,
// or finds a row wrong, and for anything that is left at the end.
Outcome run_session(const Case& c, std::uint64_t seed, int kills);

// How often a process passes each point of the library that is to be killed there in other
// sessions, and that finds what they leave to be found.
std::map<std::string, int> run_dry(Transport transport, Side side, std::uint64_t seed);

}  // namespace moetap::crash
