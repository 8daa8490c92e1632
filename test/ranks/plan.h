// What the ranks of a test do, as their command line has it: every process can tell what each row
// must hold.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/topology.h>

#include <string>
#include <vector>

#include "test/gpu/model.h"

namespace moetap::test {

struct Plan {
  static constexpr std::int64_t kPadded = 12;  // rows of a graph, and slots of a step

  std::string instance{};
  std::string transport = "shm";  // or device
  int dp = 1;
  int tp = 1;
  int pp = 1;
  std::string parts = "none";    // or even, uneven (gathered); published
  std::string layout = "local";  // or concatenated, padded
  std::string graph = "none";    // or outside, inside: where the gather is
  std::string weights = "none";  // or float32, bfloat16
  std::string trouble = "none";  // or late, too_late, dies, miscounts: tensor-parallel rank 1 does
  std::uint64_t trouble_step = 3;
  int steps = 9;
  int timeout_ms = 60'000;  // of a gather

  static Plan parse(int argc, char** argv);
  std::vector<std::string> arguments() const;

  int ranks() const { return dp * tp * pp; }
  bool gathers() const { return parts == "even" || parts == "uneven"; }
  Topology topology(int rank) const;
  Endpoint engine() const;
  Router router() const;

  // Of one data-parallel rank.
  std::int64_t num_tokens(Step step, int dp_rank) const;
  std::int64_t padded_tokens(Step step, int dp_rank) const;
  std::vector<Slot> slots(Step step, int dp_rank) const;  // no slot is in two steps
  // The number by which the router knows a token.
  static std::int64_t router_row(int dp_rank, std::int64_t token) { return dp_rank * 100 + token; }

  // How the (padded) tokens are split over the tensor-parallel ranks.
  std::vector<std::int64_t> part_tokens(Step step, int dp_rank) const {
    return split(padded_tokens(step, dp_rank));
  }
  std::vector<std::int64_t> split(std::int64_t tokens) const;
};

}  // namespace moetap::test
