#include <moetap/collective.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "gpu/capture/picks_check.h"
#include "gpu/collective/pack_kernel.h"

namespace moetap {

MOETAP_DEFINE_KERNEL(PackKernel<std::uint8_t>);
MOETAP_DEFINE_KERNEL(PackKernel<std::uint16_t>);
MOETAP_DEFINE_KERNEL(PackKernel<std::int16_t>);
MOETAP_DEFINE_KERNEL(PackKernel<std::int32_t>);
MOETAP_DEFINE_KERNEL(PackKernel<std::int64_t>);

namespace {

std::size_t bytes_of(std::int64_t tokens, int width) {
  return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(width) * sizeof(std::int32_t);
}

template <class T>
void launch_pack(const TopkIds& part, std::int64_t rows, int top_k, std::int32_t* to,
                 Stream& stream) {
  const PackKernel<T> kernel{.from = static_cast<const T*>(part.data),
                             .row_stride = part.row_stride,
                             .to = to,
                             .rows = rows,
                             .top_k = top_k,
                             .weights = part.weights};
  stream.launch(kernel, (rows + kernel.kRows - 1) / kernel.kRows);
}

}  // namespace

bool records_graph(Stream& stream) {
  try {
    (void)stream.idle();
    return false;
  } catch (const StateError&) {
    return true;
  }
}

PartGather::PartGather(Device& device, Collective& ranks, int top_k, std::int64_t max_tokens,
                       int shared_expert_columns, WeightType weights)
    : ranks_(ranks),
      top_k_(top_k),
      weights_(weights),
      width_(weights == WeightType::none ? top_k : 2 * top_k),
      shared_expert_columns_(shared_expert_columns),
      max_tokens_(max_tokens),
      counts_(static_cast<std::size_t>(ranks.size())) {
  if (top_k < 1 || max_tokens < 1 || shared_expert_columns < 0) {
    throw ArgumentError(
        fmt::format("a gather of top-{}, {} tokens and {} shared-expert columns; they must be at "
                    "least 1, 1 and 0",
                    top_k, max_tokens, shared_expert_columns));
  }
  part_ = device.allocate(bytes_of(max_tokens, width_));
  whole_ = device.allocate(part_.size());
}

void PartGather::check(const TopkIds& part, std::span<const std::int64_t> part_tokens) const {
  if (part_tokens.size() != counts_.size()) {
    throw ArgumentError(
        fmt::format("part_tokens has {} entries for {} ranks", part_tokens.size(), counts_.size()));
  }
  std::int64_t left = max_tokens_;
  for (const std::int64_t tokens : part_tokens) {
    if (tokens < 0) throw ArgumentError(fmt::format("a part of {} tokens", tokens));
    if (tokens > left) {
      throw RangeError(
          fmt::format("parts of {} tokens in all, but there is room for {}; make the "
                      "gather for as many as a step can have",
                      fmt::join(part_tokens, " + "), max_tokens_));
    }
    left -= tokens;
  }
  const std::int64_t own = part_tokens[static_cast<std::size_t>(ranks_.rank())];
  if (part.rows < own) {
    throw ArgumentError(
        fmt::format("this rank's part has {} rows, but part_tokens says {}", part.rows, own));
  }
  const std::int64_t columns = std::int64_t{top_k_} + shared_expert_columns_;
  if (part.columns != columns) {
    throw ArgumentError(
        fmt::format("this rank's part has {} columns, expected are {}: top_k {} and {} of shared "
                    "experts, which must be declared",
                    part.columns, columns, top_k_, shared_expert_columns_));
  }
  if (const auto why = detail::why_unreadable(part, own, top_k_, weights_)) {
    throw ArgumentError("this rank's part: " + *why);
  }
}

void PartGather::pack(const TopkIds& part, std::int64_t rows, Stream& stream) {
  auto* to = part_.as<std::int32_t>();
  switch (part.type) {
    case IdType::uint8:
      return launch_pack<std::uint8_t>(part, rows, top_k_, to, stream);
    case IdType::uint16:
      return launch_pack<std::uint16_t>(part, rows, top_k_, to, stream);
    case IdType::int16:
      return launch_pack<std::int16_t>(part, rows, top_k_, to, stream);
    case IdType::int32:
      return launch_pack<std::int32_t>(part, rows, top_k_, to, stream);
    case IdType::int64:
      return launch_pack<std::int64_t>(part, rows, top_k_, to, stream);
  }
}

TopkIds PartGather::gather(const TopkIds& part, std::span<const std::int64_t> part_tokens,
                           Stream& stream) {
  check(part, part_tokens);
  ranks_.check();
  std::ranges::transform(part_tokens, counts_.begin(),
                         [this](std::int64_t tokens) { return tokens * width_; });
  const std::int64_t own = part_tokens[static_cast<std::size_t>(ranks_.rank())];
  const std::int64_t all = std::accumulate(part_tokens.begin(), part_tokens.end(), std::int64_t{0});
  if (own > 0) pack(part, own, stream);
  // What does not arrive is an invalid id, and never an older step's.
  stream.fill(whole_.data(), 0x80, bytes_of(all, width_));
  ranks_.gather(part_.as<const std::int32_t>(), whole_.as<std::int32_t>(), counts_, stream);
  TopkIds gathered{.data = whole_.data(),
                   .type = IdType::int32,
                   .rows = all,
                   .columns = top_k_,
                   .row_stride = width_};
  if (weights_ != WeightType::none) {
    gathered.weights = {.data = whole_.as<const std::int32_t>() + top_k_,
                        .type = WeightType::float32,
                        .row_stride = width_,
                        .gathered = true};
  }
  return gathered;
}

}  // namespace moetap
