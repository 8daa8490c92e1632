// Recomputes the routes of finished requests and compares them with what a Reader returns.
#pragma once

#include <moetap/reader.h>
#include <moetap/shape.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "router.h"
#include "scheduler.h"

namespace demo {

struct VerifierCounts {
  std::int64_t expected = 0;          // S-1 rows of a request of S tokens
  std::int64_t verified = 0;          // present, and every id is right
  std::int64_t wrong = 0;             // said to be present, and is not right
  std::int64_t missing = 0;           // missing, stale or clobbered
  std::vector<std::string> examples;  // the first few that were not verified

  bool complete() const { return wrong == 0 && verified == expected; }
};

class Verifier {
 public:
  explicit Verifier(const moetap::ModelShape& shape);

  // Reads every row of a finished request, a bounded number at a time, and checks it. Returns the
  // microseconds that the reads took. The request must still hold its blocks.
  double read_and_check(moetap::Reader& reader, const Sequence& sequence, const KvCache& cache);

  // Checks rows of positions [first, first + states.size()).
  void check(const Sequence& sequence, std::int64_t first, std::span<const std::byte> rows,
             std::span<const moetap::RowState> states);

  const VerifierCounts& counts() const { return counts_; }

 private:
  bool matches(Token token, std::int64_t position, std::span<const std::byte> row);
  void note(const std::string& example);

  moetap::ModelShape shape_;
  Router router_;
  VerifierCounts counts_;
  std::vector<std::byte> expected_row_;
  std::vector<moetap::Slot> slots_;
  std::vector<moetap::StepWindow> windows_;
  std::vector<std::byte> rows_;
  std::vector<moetap::RowState> states_;
};

}  // namespace demo
