#include "verifier.h"

#include <moetap/slots.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace demo {
namespace {

constexpr std::int64_t kChunk = 4096;  // rows a read: bounds the memory and the lock's time
constexpr std::size_t kExamples = 5;

std::uint32_t id_at(std::span<const std::byte> row, moetap::IdType type, std::size_t index) {
  if (type == moetap::IdType::uint8) return static_cast<std::uint32_t>(row[index]);
  std::uint16_t id;
  std::memcpy(&id, row.data() + index * sizeof id, sizeof id);
  return id;
}

}  // namespace

Verifier::Verifier(const moetap::ModelShape& shape)
    : shape_(shape),
      router_(shape),
      expected_row_(shape.row_bytes()),
      slots_(kChunk),
      windows_(kChunk),
      rows_(kChunk * shape.row_bytes()),
      states_(kChunk) {}

double Verifier::read_and_check(moetap::Reader& reader, const Sequence& sequence,
                                const KvCache& cache) {
  using Clock = std::chrono::steady_clock;
  Clock::duration reading{};
  const std::int64_t end = sequence.request.length() - 1;
  for (std::int64_t first = 0; first < end; first += kChunk) {
    const moetap::TokenRange range{first, std::min(first + kChunk, end)};
    const auto size = static_cast<std::size_t>(range.size());
    const auto slots = std::span(slots_).first(size);
    const auto windows = std::span(windows_).first(size);
    const auto rows = std::span(rows_).first(size * shape_.row_bytes());
    const auto states = std::span(states_).first(size);

    const auto before = Clock::now();
    moetap::slots_of(sequence.blocks, cache.block_size(), range, slots);
    for (std::size_t i = 0; i < size; ++i) {
      windows[i] = {cache.first_step(slots[i] / cache.block_size()), sequence.last_step};
    }
    reader.read(slots, windows, rows, states);
    reading += Clock::now() - before;
    check(sequence, first, rows, states);
  }
  return std::chrono::duration<double, std::micro>(reading).count();
}

void Verifier::check(const Sequence& sequence, std::int64_t first, std::span<const std::byte> rows,
                     std::span<const moetap::RowState> states) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::int64_t position = first + static_cast<std::int64_t>(i);
    ++counts_.expected;
    if (states[i] != moetap::RowState::present) {
      ++counts_.missing;
      note(fmt::format("{}, token {}: the row is {}", sequence.request.name, position,
                       moetap::row_state_name(states[i])));
      continue;
    }
    const auto row = rows.subspan(i * shape_.row_bytes(), shape_.row_bytes());
    if (matches(sequence.tokens[static_cast<std::size_t>(position)], position, row)) {
      ++counts_.verified;
      continue;
    }
    ++counts_.wrong;
    std::size_t id = 0;
    while (id_at(row, shape_.id_type(), id) == id_at(expected_row_, shape_.id_type(), id)) ++id;
    note(fmt::format("{}, token {}: expert {} at layer {}, must be {}", sequence.request.name,
                     position, id_at(row, shape_.id_type(), id),
                     shape_.moe_layers()[id / static_cast<std::size_t>(shape_.top_k())],
                     id_at(expected_row_, shape_.id_type(), id)));
  }
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
  return std::memcmp(expected_row_.data(), row.data(), row.size()) == 0;
}

void Verifier::note(const std::string& example) {
  if (counts_.examples.size() < kExamples) counts_.examples.push_back(example);
}

}  // namespace demo
