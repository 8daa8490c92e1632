#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/internal/expert_ids.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

constexpr std::byte kMissing{0xFF};

TokenRange checked(TokenRange range, const ModelShape& shape) {
  if (range.start < 0 || range.end < range.start) {
    throw ArgumentError(
        fmt::format("positions [{}, {}); allowed are 0 <= start <= end", range.start, range.end));
  }
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;  // more than any machine has
  const std::int64_t most = kMostBytes / static_cast<std::int64_t>(shape.row_bytes());
  if (range.size() > most) {
    throw ArgumentError(fmt::format(
        "positions [{}, {}) are {} rows of {} bytes; at most {} rows are possible: give the range "
        "of one sequence",
        range.start, range.end, range.size(), shape.row_bytes(), most));
  }
  return range;
}

// "3 missing (positions 5, 6, 7)", with the first few positions.
std::string describe(const Routes& routes, RowState state) {
  constexpr std::size_t kShown = 8;
  std::string positions;
  std::size_t found = 0;
  for (std::size_t i = 0; i < routes.states().size(); ++i) {
    if (routes.states()[i] != state) continue;
    if (++found > kShown) continue;
    positions += (found == 1 ? "" : ", ") +
                 std::to_string(routes.range().start + static_cast<std::int64_t>(i));
  }
  return fmt::format("{} {} (positions {}{})", found, row_state_name(state), positions,
                     found > kShown ? ", ..." : "");
}

}  // namespace

Routes::Routes(ModelShape shape, TokenRange range, Unset)
    : shape_(std::move(shape)),
      range_(checked(range, shape_)),
      ids_(static_cast<std::size_t>(range.size()) * shape_.row_bytes()),
      states_(static_cast<std::size_t>(range.size()), RowState::missing) {}

Routes::Routes(ModelShape shape, TokenRange range) : Routes(std::move(shape), range, Unset()) {
  std::ranges::fill(ids_, kMissing);
}

std::size_t Routes::index(std::int64_t position) const {
  if (position < range_.start || position >= range_.end) {
    throw RangeError(fmt::format("position {} is outside the rows' [{}, {})", position,
                                 range_.start, range_.end));
  }
  return static_cast<std::size_t>(position - range_.start);
}

std::span<const std::byte> Routes::row(std::int64_t position) const {
  return bytes().subspan(index(position) * shape_.row_bytes(), shape_.row_bytes());
}

RowState Routes::state(std::int64_t position) const { return states_[index(position)]; }

std::size_t Routes::index_in_row(int layer_index, int k) const {
  if (layer_index < 0 || layer_index >= shape_.num_layers() || k < 0 || k >= shape_.top_k()) {
    throw RangeError(fmt::format(
        "layer index {}, k {} of a row of {}; they must be 0 to {} and 0 to {}. "
        "ModelShape::layer_index() has the index of a model's layer",
        layer_index, k, shape_.to_string(), shape_.num_layers() - 1, shape_.top_k() - 1));
  }
  const int index = layer_index * shape_.top_k() + k;
  return static_cast<std::size_t>(index);
}

std::uint32_t Routes::id(std::int64_t position, int layer_index, int k) const {
  const std::size_t width = id_bytes(shape_.id_type());
  const std::byte* id = row(position).data() + index_in_row(layer_index, k) * width;
  if (width == 1) return std::to_integer<std::uint32_t>(*id);
  std::uint16_t wide;
  std::memcpy(&wide, id, sizeof wide);
  return wide;
}

float Routes::weight(std::int64_t position, int layer_index, int k) const {
  const std::size_t i = index_in_row(layer_index, k);
  if (shape_.weight_type() == WeightType::bfloat16) {
    return static_cast<float>(weights<BFloat16>(position)[i]);
  }
  return weights<float>(position)[i];
}

template <class T>
std::span<const T> weights_of(const ModelShape& shape, std::span<const std::byte> row) {
  constexpr WeightType type = sizeof(T) == 4 ? WeightType::float32 : WeightType::bfloat16;
  if (shape.weight_type() != type || row.size() != shape.row_bytes()) {
    throw ArgumentError(fmt::format(
        "{} weights of a row of {} bytes of {}, which has {} of {} bytes: ask for the shape's "
        "weight_type() in one whole row of it",
        weight_type_name(type), row.size(), shape.to_string(),
        weight_type_name(shape.weight_type()), shape.row_bytes()));
  }
  return {reinterpret_cast<const T*>(row.data() + shape.weights_offset()), shape.row_ids()};
}
template std::span<const float> weights_of(const ModelShape&, std::span<const std::byte>);
template std::span<const BFloat16> weights_of(const ModelShape&, std::span<const std::byte>);

std::size_t Routes::count(RowState state) const {
  return static_cast<std::size_t>(std::count(states_.begin(), states_.end(), state));
}

const Routes& Routes::require_present() const {
  if (all_present()) return *this;
  std::string text;
  for (const RowState state :
       {RowState::missing, RowState::stale, RowState::clobbered, RowState::unverified}) {
    if (count(state) > 0) text += (text.empty() ? "" : ", ") + describe(*this, state);
  }
  throw RowsNotPresent(fmt::format(
      "of rows [{}, {}): {}. Use a signed type, where such rows are -1, or compute them again",
      range_.start, range_.end, text));
}

std::pair<Routes, Routes> Routes::split(std::int64_t position) const {
  if (position < range_.start || position > range_.end) {
    throw RangeError(
        fmt::format("cannot split the rows [{}, {}) at position {}; it must be {} to {}",
                    range_.start, range_.end, position, range_.start, range_.end));
  }
  const auto part = [this](TokenRange range) {
    Routes routes(shape_, range, Unset());
    const auto skip = static_cast<std::size_t>(range.start - range_.start);
    const auto size = static_cast<std::size_t>(range.size());
    const auto ids = bytes().subspan(skip * shape_.row_bytes(), size * shape_.row_bytes());
    std::copy(ids.begin(), ids.end(), routes.ids_.begin());
    std::copy_n(states_.begin() + static_cast<std::ptrdiff_t>(skip), size, routes.states_.begin());
    return routes;
  };
  return {part({range_.start, position}), part({position, range_.end})};
}

Routes Routes::with_layers(std::vector<int> moe_layers) const {
  Routes some(shape_.with_layers(std::move(moe_layers)), range_);
  const ModelShape& shape = some.shape_;
  const auto top_k = static_cast<std::size_t>(shape_.top_k());
  const auto copy_layers = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
    for (const int layer : shape.moe_layers()) {
      std::memcpy(to, from + static_cast<std::size_t>(shape_.layer_index(layer)) * bytes, bytes);
      to += bytes;
    }
  };
  for (std::size_t i = 0; i < states_.size(); ++i) {
    some.states_[i] = states_[i];
    if (states_[i] != RowState::present && states_[i] != RowState::unverified) continue;
    std::byte* const to = some.ids_.data() + i * shape.row_bytes();
    const std::byte* const from = ids_.data() + i * shape_.row_bytes();
    copy_layers(to, from, top_k * id_bytes(shape.id_type()));
    detail::clear_gap(shape, to);
    copy_layers(to + shape.weights_offset(), from + shape_.weights_offset(),
                top_k * weight_bytes(shape.weight_type()));
  }
  return some;
}

void Routes::append(const Routes& next) {
  if (shape_ != next.shape_) {
    throw ArgumentError(
        fmt::format("cannot append rows of {} to rows of {}: they differ in {}; "
                    "join rows of one model",
                    next.shape_.to_string(), shape_.to_string(), next.shape_.difference(shape_)));
  }
  if (next.range_.start != range_.end && !MOETAP_OFF("H28 ranges that meet")) {
    throw ArgumentError(fmt::format(
        "cannot append the rows [{}, {}) to [{}, {}): {}; append those from {} on, or "
        "split() these",
        next.range_.start, next.range_.end, range_.start, range_.end,
        next.range_.start > range_.end ? "there is a gap" : "they overlap", range_.end));
  }
  states_.reserve(states_.size() + next.states_.size());  // so that only the next line can throw
  ids_.insert(ids_.end(), next.ids_.begin(), next.ids_.end());
  states_.insert(states_.end(), next.states_.begin(), next.states_.end());
  range_.end = next.range_.end;
}

}  // namespace moetap
