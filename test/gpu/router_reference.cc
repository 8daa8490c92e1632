#include "test/gpu/router_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace moetap::test {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// NaN where a score is no number.
std::vector<double> scores_of(const RouterOptions& options, std::span<const float> logits) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (options.scoring == Scoring::sigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
    return scores;
  }
  double highest = kNone, sum = 0;
  for (const double logit : scores) highest = std::fmax(highest, logit);
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (double& score : scores) score /= sum;
  return scores;
}

// Indices of `values`, the greatest first, ties by the lower index.
std::vector<std::size_t> ranked(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return values[i]; });
  return order;
}

// Whether any of the first `count` in this order may change places with the next one. `error`: of a
// value, beside that of its rounding. same(a, b): they are equal in any precision.
template <class Same>
bool any_close(const std::vector<double>& values, const std::vector<std::size_t>& order,
               std::size_t count, double error, Same&& same) {
  for (std::size_t i = 1; i < order.size() && i <= count; ++i) {
    const double a = values[order[i - 1]], b = values[order[i]];
    if (b == kNone) return false;
    if (a - b <= error + 2e-6 * std::fabs(a) && !same(order[i - 1], order[i])) return true;
  }
  return false;
}

// The best two choices of each group; what is not there is kNone.
using BestTwo = std::array<double, 2>;
std::vector<BestTwo> best_of_groups(const RouterOptions& options,
                                    const std::vector<double>& choices) {
  const int size = options.num_experts / options.num_groups;
  std::vector<BestTwo> best;
  for (int group = 0; group < options.num_groups; ++group) {
    const auto first = choices.begin() + group * size;
    std::vector<double> members(first, first + size);
    std::ranges::sort(members, std::greater<>());
    members.push_back(kNone);
    best.push_back({members[0], members[1]});
  }
  return best;
}

// Leaves the choices of the best groups only. Returns whether two groups are close.
bool keep_best_groups(const RouterOptions& options, bool biased, std::vector<double>& choices) {
  const auto size = static_cast<std::size_t>(options.num_experts / options.num_groups);
  const std::vector<BestTwo> best = best_of_groups(options, choices);
  std::vector<double> values;
  values.reserve(best.size());
  for (const BestTwo& two : best) {
    values.push_back(!biased || size == 1 ? two[0] : two[0] + two[1]);
  }
  const std::vector<std::size_t> order = ranked(values);
  for (std::size_t i = static_cast<std::size_t>(options.top_groups); i < order.size(); ++i) {
    std::fill_n(choices.begin() + static_cast<std::ptrdiff_t>(order[i] * size), size, kNone);
  }
  return any_close(values, order, static_cast<std::size_t>(options.top_groups), biased ? 1e-6 : 0,
                   [&](std::size_t a, std::size_t b) {
                     return best[a][0] == best[b][0] && (!biased || best[a][1] == best[b][1]);
                   });
}

}  // namespace

RoutedToken route_plainly(const RouterOptions& options, std::span<const float> logits,
                          std::span<const float> bias) {
  const std::vector<double> scores = scores_of(options, logits);
  std::vector<double> choices = scores;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (!bias.empty()) choices[i] += bias[i];
    if (std::isnan(choices[i])) choices[i] = kNone;
  }
  RoutedToken token;
  if (options.top_groups < options.num_groups) {
    token.close = keep_best_groups(options, !bias.empty(), choices);
  }
  const std::vector<std::size_t> order = ranked(choices);
  token.close |= any_close(choices, order, static_cast<std::size_t>(options.top_k),
                           bias.empty() ? 0 : 1e-6, [&](std::size_t a, std::size_t b) {
                             return logits[a] == logits[b] && (bias.empty() || bias[a] == bias[b]);
                           });
  double sum = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(options.top_k); ++k) {
    const bool none = choices[order[k]] == kNone;
    token.ids.push_back(none ? -1 : static_cast<std::int32_t>(order[k]));
    token.weights.push_back(none ? 0 : scores[order[k]]);
    sum += token.weights.back();
  }
  for (double& weight : token.weights) {
    weight *= options.renormalize ? options.scale / (sum + 1e-20) : options.scale;
  }
  return token;
}

}  // namespace moetap::test
