// Recomputes the routes of requests and compares them with what was read.
#pragma once

#include <moetap/routes.h>
#include <moetap/shape.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/simulator/router.h"
#include "examples/simulator/trace.h"

namespace demo {

struct VerifierCounts {
  std::int64_t expected = 0;  // S-1 rows of a request of S tokens
  std::int64_t verified = 0;  // reported as right, and every id is
  std::int64_t wrong = 0;     // reported as right, and is not
  std::int64_t missing = 0;   // reported as not present, by its state
  std::int64_t stale = 0;
  std::int64_t clobbered = 0;
  std::vector<std::string> examples;  // the first few that were not verified

  bool complete() const { return wrong == 0 && verified == expected; }
  VerifierCounts& operator+=(const VerifierCounts& other);
};

class Verifier {
 public:
  explicit Verifier(const moetap::ModelShape& shape);

  // Checks rows that must be those of positions `expected` of the request.
  void check(const Request& request, moetap::TokenRange expected, const moetap::Routes& routes);

  const VerifierCounts& counts() const { return counts_; }

 private:
  bool matches(Token token, std::int64_t position, std::span<const std::byte> row);
  void fill_weights(Token token, std::int64_t position);
  void check_row(const Request& request, std::int64_t position, std::span<const std::byte> row);
  void note(const std::string& example);

  moetap::ModelShape shape_;
  Router router_;
  VerifierCounts counts_;
  std::vector<std::byte> expected_row_;
};

}  // namespace demo
