// The kernel of <moetap/topk_router.h>. A team works on one token: on a GPU a warp, whose lanes
// share the experts; on a host a single lane with all experts.
#pragma once

#include <moetap/route_sink.h>
#include <moetap/topk_router.h>

#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#define MOETAP_UNROLL _Pragma("unroll")
#else
#define MOETAP_UNROLL
#endif

namespace moetap {
namespace router {

#if defined(__CUDA_ARCH__)
inline constexpr int kTeam = 32;
#else
inline constexpr int kTeam = 1;
#endif
inline constexpr int kMine = RouterOptions::kMaxExperts / kTeam;  // most experts per lane
inline constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Pick {
  float choice;  // score + bias, which decides the picks
  float score;
  std::int32_t id;
};

MOETAP_DEVICE inline bool better(const Pick& a, const Pick& b) {
  return a.choice > b.choice || (a.choice == b.choice && a.id < b.id);
}

#if defined(__CUDA_ARCH__)
template <class T>
__device__ inline T of_lane(T value, int offset) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, offset);
}
#endif

// Reductions over a team; every lane gets the result.
MOETAP_DEVICE inline float team_max(float value) {
#if defined(__CUDA_ARCH__)
  for (int offset = kTeam / 2; offset > 0; offset /= 2)
    value = fmaxf(value, of_lane(value, offset));
#endif
  return value;
}

MOETAP_DEVICE inline float team_sum(float value) {
#if defined(__CUDA_ARCH__)
  for (int offset = kTeam / 2; offset > 0; offset /= 2) value += of_lane(value, offset);
#endif
  return value;
}

MOETAP_DEVICE inline Pick team_best(Pick pick) {
#if defined(__CUDA_ARCH__)
  for (int offset = kTeam / 2; offset > 0; offset /= 2) {
    const Pick other{of_lane(pick.choice, offset), of_lane(pick.score, offset),
                     of_lane(pick.id, offset)};
    if (better(other, pick)) pick = other;
  }
#endif
  return pick;
}

// The two greatest of a group.
struct Two {
  float first = kNone;
  float second = kNone;

  MOETAP_DEVICE void add(float value) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
};

MOETAP_DEVICE inline Two team_two(Two two) {
#if defined(__CUDA_ARCH__)
  for (int offset = kTeam / 2; offset > 0; offset /= 2) {
    const Two other{of_lane(two.first, offset), of_lane(two.second, offset)};
    two.add(other.first);
    two.add(other.second);
  }
#endif
  return two;
}

}  // namespace router

// The common part of both forms: options and pointers only, as it is a kernel argument.
struct TokenRouter {
  RouterBuffers buffers;
  RouterOptions options;

  // Routes one token. One lane of the team calls on_pick(k, id, weight) for each pick.
  template <class OnPick>
  MOETAP_DEVICE void route(std::int64_t token, int lane, OnPick&& on_pick) const {
    using router::kMine;
    using router::kNone;
    using router::kTeam;
    float score[kMine];
    float choice[kMine];
    compute_scores(token, lane, score);
    MOETAP_UNROLL
    for (int i = 0; i < kMine; ++i) {
      const int expert = lane + i * kTeam;
      choice[i] = kNone;
      if (expert < options.num_experts) {
        choice[i] = buffers.bias == nullptr ? score[i] : score[i] + buffers.bias[expert];
      }
    }
    if (options.top_groups < options.num_groups) keep_best_groups(lane, choice);
    pick_all(token, lane, score, choice, on_pick);
  }

 private:
  MOETAP_DEVICE void compute_scores(std::int64_t token, int lane, float* score) const {
    using namespace router;
    const float* const logits = buffers.logits + token * options.num_experts;
    float highest = kNone;
    MOETAP_UNROLL
    for (int i = 0; i < kMine; ++i) {
      const int expert = lane + i * kTeam;
      score[i] = expert < options.num_experts ? logits[expert] : kNone;
      highest = fmaxf(highest, score[i]);
    }
    if (options.scoring == Scoring::sigmoid) {
      MOETAP_UNROLL
      for (int i = 0; i < kMine; ++i) score[i] = 1.0F / (1.0F + expf(-score[i]));
      return;
    }
    highest = team_max(highest);
    float sum = 0;
    MOETAP_UNROLL
    for (int i = 0; i < kMine; ++i) {
      score[i] = expf(score[i] - highest);
      sum += score[i];
    }
    sum = team_sum(sum);
    MOETAP_UNROLL
    for (int i = 0; i < kMine; ++i) score[i] /= sum;
  }

  MOETAP_DEVICE void keep_best_groups(int lane, float* choice) const {
    using namespace router;
    const int size = options.num_experts / options.num_groups;
    float value[RouterOptions::kMaxGroups];
    for (int group = 0; group < options.num_groups; ++group) {
      Two two;
      MOETAP_UNROLL
      for (int i = 0; i < kMine; ++i) {
        if ((lane + i * kTeam) / size == group) two.add(choice[i]);
      }
      two = team_two(two);
      // The sum of two only if a group has two experts.
      value[group] = buffers.bias == nullptr || size == 1 ? two.first : two.first + two.second;
    }
    std::uint32_t kept = 0;  // one bit per group
    for (int n = 0; n < options.top_groups; ++n) {
      int best = -1;
      for (int group = 0; group < options.num_groups; ++group) {
        if ((kept >> group & 1) == 0 && (best < 0 || value[group] > value[best])) best = group;
      }
      kept |= 1U << best;
    }
    MOETAP_UNROLL
    for (int i = 0; i < kMine; ++i) {
      const int expert = lane + i * kTeam;
      if (expert < options.num_experts && (kept >> (expert / size) & 1) == 0) choice[i] = kNone;
    }
  }

  template <class OnPick>
  MOETAP_DEVICE void pick_all(std::int64_t token, int lane, const float* score, float* choice,
                              OnPick&& on_pick) const {
    using namespace router;
    std::int32_t* const ids = buffers.topk_ids + token * options.top_k;
    float* const weights = buffers.weights + token * options.top_k;
    constexpr std::int32_t kNobody = INT32_MAX;
    float sum = 0;
    for (int k = 0; k < options.top_k; ++k) {
      Pick pick{kNone, 0, kNobody};
      MOETAP_UNROLL
      for (int i = 0; i < kMine; ++i) {
        const Pick mine{choice[i], score[i], lane + i * kTeam};
        if (choice[i] > kNone && better(mine, pick)) pick = mine;
      }
      pick = team_best(pick);
      MOETAP_UNROLL
      for (int i = 0; i < kMine; ++i) {
        if (lane + i * kTeam == pick.id) choice[i] = kNone;
      }
      sum += pick.score;
      if (lane != 0) continue;
      ids[k] = pick.id == kNobody ? -1 : pick.id;
      weights[k] = pick.score;
    }
    if (lane != 0) return;
    const float factor = options.renormalize ? options.scale / (sum + 1e-20F) : options.scale;
    for (int k = 0; k < options.top_k; ++k) {
      weights[k] *= factor;
      on_pick(k, ids[k], weights[k]);
    }
  }
};

// A block takes kTokens tokens.
struct RouterGeometry {
  static constexpr int kLanes = 128;
  static constexpr std::int64_t kTokens = 4;

  // Calls route(token, lane in its team) for each token of the block that this lane works on.
  template <class Route>
  MOETAP_DEVICE static void for_tokens(Block block, std::int64_t num_tokens, Route&& route) {
#if defined(__CUDA_ARCH__)
    const int team = block.lane / router::kTeam;
    const int teams = block.lanes / router::kTeam;
#else
    const int team = block.lane;
    const int teams = block.lanes;
#endif
    for (std::int64_t i = team; i < kTokens; i += teams) {
      const std::int64_t token = block.index * kTokens + i;
      if (token < num_tokens) route(token, block.lane % router::kTeam);
    }
  }
};

struct RouterKernel : RouterGeometry {
  TokenRouter router;

  MOETAP_DEVICE void operator()(Block block) const {
    for_tokens(block, router.buffers.num_tokens, [this](std::int64_t token, int lane) {
      router.route(token, lane, [](int, std::int32_t, float) {});
    });
  }
};

struct CapturingRouterKernel : RouterGeometry {
  TokenRouter router;
  RouteSink sink;

  MOETAP_DEVICE void operator()(Block block) const {
    const RouteWriter routes(sink);
    const bool weighed = routes.weight_type() != WeightType::none;
    if (block.index == 0 && block.lane == 0) {
      routes.begin(router.buffers.num_tokens, weighed ? WeightType::float32 : WeightType::none);
    }
    for_tokens(block, router.buffers.num_tokens, [&](std::int64_t token, int lane) {
      router.route(token, lane, [&](int k, std::int32_t id, float weight) {
        if (weighed) {
          routes.put(token, k, id, weight);
        } else {
          routes.put(token, k, id);
        }
      });
    });
  }
};

}  // namespace moetap
