// What the worker and the scheduler of this example agree on, and the lines that they exchange.
//
// The scheduler decides, and writes orders to the worker's standard input:
//
//   step STEP CHUNKS              one forward pass, and for each chunk of it a line:
//     SEQUENCE FIRST SAMPLES COUNT token… slot…     positions from FIRST on; SAMPLES is 0 or 1
//   copy FROM TO TOKENS           a prefix hit: the first TOKENS of FROM are TO's first
//   keep SEQUENCE TOKENS          the sequence's other tokens go; 0: all
//   over REQUEST SEQUENCE TOKENS  writes down what the routers picked for the sequence's first
//   TOKENS end
//
// The worker answers a step with a line: the token that each sampling chunk sampled, in order. It
// answers "over" with an empty line.
#pragma once

#include <moetap/endpoint.h>

#include <string>

namespace example {

inline constexpr int kBlockSize = 8;
inline constexpr std::int64_t kBlocks = 40;  // few, so that requests are preempted
inline constexpr std::int64_t kMaxTokens = 48;
inline constexpr int kSequences = 64;  // those of requests, and those whose blocks are still cached

inline moetap::Endpoint endpoint(const std::string& config, const std::string& instance) {
  return {.instance = instance,
          .shape = moetap::ModelShape::from_config_file(config),
          .num_slots = kBlocks * kBlockSize,
          .max_tokens = kMaxTokens};
}

}  // namespace example
