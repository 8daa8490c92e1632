// Requests that are made up: their prompts begin alike, and some clients give up.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <random>
#include <vector>

namespace example {

struct Request {
  moetap::RequestId id = 0;
  std::vector<std::int32_t> tokens{};  // the prompt, and what was sampled
  std::size_t length = 0;              // it is over when it has so many
  int patience = 0;                    // its client gives up after so many of its steps; 0: never
  bool started = false;
  bool gives_up = false;
};

inline std::vector<Request> make_requests(int count, int vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<std::uint64_t>(to - from + 1));
  };
  const auto text = [&](int length) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    for (std::int32_t& token : tokens) token = draw(0, vocabulary - 1);
    return tokens;
  };
  std::vector<std::vector<std::int32_t>> beginnings;
  for (int i = 0; i < 6; ++i) beginnings.push_back(text(draw(10, 45)));

  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request;
    request.id = moetap::RequestId(static_cast<std::uint64_t>(i + 1));
    request.tokens = beginnings[static_cast<std::size_t>(draw(0, 5))];
    const auto rest = text(draw(1, 40));
    request.tokens.insert(request.tokens.end(), rest.begin(), rest.end());
    request.length = request.tokens.size() + static_cast<std::size_t>(draw(2, 50));
    if (draw(0, 3) == 0) request.patience = draw(1, 25);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace example
