#include "examples/simulator/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "examples/simulator/sequence.h"

namespace demo {
namespace {

constexpr std::size_t kExamples = 5;

std::uint32_t id_at(std::span<const std::byte> row, moetap::IdType type, std::size_t index) {
  if (type == moetap::IdType::uint8) return static_cast<std::uint32_t>(row[index]);
  std::uint16_t id;
  std::memcpy(&id, row.data() + index * sizeof id, sizeof id);
  return id;
}

}  // namespace

VerifierCounts& VerifierCounts::operator+=(const VerifierCounts& other) {
  expected += other.expected;
  verified += other.verified;
  wrong += other.wrong;
  missing += other.missing;
  stale += other.stale;
  clobbered += other.clobbered;
  examples.insert(examples.end(), other.examples.begin(), other.examples.end());
  return *this;
}

Verifier::Verifier(const moetap::ModelShape& shape)
    : shape_(shape), router_(shape), expected_row_(shape.row_bytes()) {}

void Verifier::check(const Request& request, moetap::TokenRange expected,
                     const moetap::Routes& routes) {
  counts_.expected += expected.size();
  const moetap::TokenRange range = routes.range();
  if (range != expected) {
    counts_.wrong += std::max<std::int64_t>(1, expected.size());
    note(fmt::format("{}: rows [{}, {}) instead of [{}, {})", request.name, range.start, range.end,
                     expected.start, expected.end));
    return;
  }
  for (std::int64_t position = range.start; position < range.end; ++position) {
    switch (routes.state(position)) {
      case moetap::RowState::present:
      case moetap::RowState::unverified:  // a layout without stamps: only the ids can be checked
        check_row(request, position, routes.row(position));
        continue;
      case moetap::RowState::missing:
        ++counts_.missing;
        break;
      case moetap::RowState::stale:
        ++counts_.stale;
        break;
      case moetap::RowState::clobbered:
        ++counts_.clobbered;
        break;
    }
    note(fmt::format("{}, token {}: the row is {}", request.name, position,
                     moetap::row_state_name(routes.state(position))));
  }
}

void Verifier::check_row(const Request& request, std::int64_t position,
                         std::span<const std::byte> row) {
  if (matches(token_of(request, position), position, row)) {
    ++counts_.verified;
    return;
  }
  ++counts_.wrong;
  std::size_t id = 0;
  while (id < shape_.row_ids() &&
         id_at(row, shape_.id_type(), id) == id_at(expected_row_, shape_.id_type(), id)) {
    ++id;
  }
  if (id == shape_.row_ids()) {
    return note(
        fmt::format("{}, token {}: another weight than the router's", request.name, position));
  }
  note(fmt::format("{}, token {}: expert {} at layer {}, must be {}", request.name, position,
                   id_at(row, shape_.id_type(), id),
                   shape_.moe_layers()[id / static_cast<std::size_t>(shape_.top_k())],
                   id_at(expected_row_, shape_.id_type(), id)));
}

bool Verifier::matches(Token token, std::int64_t position, std::span<const std::byte> row) {
  const auto fill = [&](auto* id) {
    for (const int layer : shape_.moe_layers()) {
      router_(token, position, layer, id);
      id += shape_.top_k();
    }
  };
  if (shape_.id_type() == moetap::IdType::uint8) {
    fill(reinterpret_cast<std::uint8_t*>(expected_row_.data()));
  } else {
    fill(reinterpret_cast<std::uint16_t*>(expected_row_.data()));
  }
  fill_weights(token, position);
  return std::memcmp(expected_row_.data(), row.data(), row.size()) == 0;
}

// After the ids; the bytes between are 0 and stay so.
void Verifier::fill_weights(Token token, std::int64_t position) {
  const std::size_t width = moetap::weight_bytes(shape_.weight_type());
  if (width == 0) return;
  std::byte* to = expected_row_.data() + shape_.weights_offset();
  for (const int layer : shape_.moe_layers()) {
    for (int k = 0; k < shape_.top_k(); ++k, to += width) {
      const std::uint32_t bits = router_.weight(token, position, layer, k) >> (32 - 8 * width);
      std::memcpy(to, &bits, width);
    }
  }
}

void Verifier::note(const std::string& example) {
  if (counts_.examples.size() < kExamples) counts_.examples.push_back(example);
}

}  // namespace demo
