// A DeviceCache with all its kernels, against a plain reference, in random cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "lib/internal/step_record.h"
#include "test/gpu/differential/cache_reference.h"
#include "test/gpu/differential/cache_run.h"
#include "test/gpu/differential/seeds.h"

namespace moetap::test {
namespace {

// A record with the memory around it, of which the parts are taken out one by one.
class Record {
 public:
  Record(const CacheCase& cache, std::int64_t rows, std::vector<std::byte> bytes)
      : layout_(cache.shape, rows), bytes_(std::move(bytes)), seen_(bytes_.size()) {}

  template <class T>
  T take(std::size_t offset) {
    T value{};
    offset += CacheRun::kMargin;
    std::memcpy(&value, &bytes_[offset], sizeof value);
    std::fill_n(seen_.begin() + static_cast<std::ptrdiff_t>(offset), sizeof value, true);
    return value;
  }
  std::int64_t take_bits(std::size_t offset, std::size_t bytes) {
    if (bytes == 1) return take<std::uint8_t>(offset);
    return bytes == 2 ? take<std::uint16_t>(offset) : take<std::uint32_t>(offset);
  }
  const StepRecordLayout& layout() const { return layout_; }
  // Of a byte that is no part's and was written, from the record's start.
  std::optional<std::int64_t> stray() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (!seen_[i] && bytes_[i] != kUnwritten) {
        return static_cast<std::int64_t>(i) - static_cast<std::int64_t>(CacheRun::kMargin);
      }
    }
    return {};
  }

 private:
  StepRecordLayout layout_;
  std::vector<std::byte> bytes_;
  std::vector<bool> seen_;
};

void expect_report(Record& record, const StepCase& step, std::uint64_t number,
                   const ExpectedStep& expected) {
  const auto report = record.take<StepReport>(0);
  EXPECT_EQ(report.step, Step(static_cast<std::int64_t>(number)));
  EXPECT_EQ(report.num_tokens, step.num_rows());
  EXPECT_EQ(report.step_tokens, step.num_tokens);
  const Found found{static_cast<DeviceFault>(report.fault), report.fault_layer, report.fault_token,
                    report.fault_value};
  const bool promised = expected.faults.empty()
                            ? found == Found{}
                            : std::ranges::find(expected.faults, found) != expected.faults.end();
  EXPECT_TRUE(promised) << "fault " << report.fault << ", layer " << found.layer << ", token "
                        << found.token << ", value " << found.value << " is none of "
                        << expected.faults.size();
  for (std::size_t i = 0; i < expected.captured.size(); ++i) {
    ASSERT_EQ(record.take<std::uint64_t>(record.layout().captured + 8 * i), expected.captured[i])
        << "layer " << i;
  }
}

// One row's ids or weights, `width` bytes each from `offset` on.
void expect_picks(Record& record, std::size_t offset, std::size_t width,
                  std::span<const std::int64_t> expected, const char* what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t found = record.take_bits(offset + i * width, width);
    if (expected[i] == kAnything) continue;
    ASSERT_EQ(found, expected[i]) << what << " " << i << " of the row";
  }
}

void expect_rows(Record& record, const CacheCase& cache, std::int64_t rows,
                 const ExpectedStep& expected) {
  const ModelShape& shape = cache.shape;
  const std::size_t picks = shape.row_ids();
  const std::size_t id = shape.num_experts() <= 256 ? 1 : 2;
  const std::size_t weight = weight_bytes(shape.weight_type());
  const std::size_t gap = weight == 0 ? 0 : (weight - picks * id % weight) % weight;
  const std::size_t row_bytes = picks * (id + weight) + gap;
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    SCOPED_TRACE(fmt::format("row {}", row));
    ASSERT_EQ(record.take<std::int64_t>(record.layout().slots + 8 * row), expected.slots[row]);
    const std::size_t at = record.layout().rows + row * row_bytes;
    const auto part = [&](const std::vector<std::int64_t>& all) {
      return std::span(all).subspan(row * picks, picks);
    };
    expect_picks(record, at, id, part(expected.ids), "id");
    for (std::size_t i = 0; i < gap; ++i) ASSERT_EQ(record.take_bits(at + picks * id + i, 1), 0);
    if (weight == 0) continue;
    expect_picks(record, at + picks * id + gap, weight, part(expected.weights), "weight");
  }
}

class DifferentialCache : public testing::TestWithParam<DeviceMaker> {};
INSTANTIATE_TEST_SUITE_P(, DifferentialCache, testing::ValuesIn(differential_devices()),
                         device_name);

// The case's next step on the device and in the reference.
class Compared {
 public:
  Compared(Device& device, const CacheCase& cache)
      : case_(cache), reference_(cache, device.name().starts_with("cuda")), run_(device, cache) {}

  void step(const StepCase& step) {
    const ExpectedStep expected = reference_.run(step);
    Record record(case_, step.num_rows(), run_.run(step));
    expect_report(record, step, ++number_, expected);
    expect_rows(record, case_, step.num_rows(), expected);
    EXPECT_EQ(record.stray(), std::nullopt) << "a byte that is no part of the record";
  }

 private:
  const CacheCase& case_;
  CacheReference reference_;
  CacheRun run_;
  std::uint64_t number_ = 0;
};

TEST_P(DifferentialCache, MakesTheRecordsThatTheReferenceMakes) {
  for_each_case(GetParam(), 1, [](std::uint64_t seed, Device& device) {
    const CacheCase cache(seed);
    SCOPED_TRACE(cache.to_string());
    Compared compared(device, cache);
    for (std::size_t i = 0; i < cache.steps.size() && !HasFailure(); ++i) {
      SCOPED_TRACE(fmt::format("step {}", i + 1));
      compared.step(cache.steps[i]);
    }
  });
}

// Compilers unroll loops over picks, so each place in a row has instructions of its own. In the
// following tests one pick alone is wrong, at each place in turn.

CacheCase one_layer(const LayerCase& layer, int top_k, WeightType weights) {
  CacheCase cache;
  const int experts = layer.type == IdType::uint8 ? 200 : 300;
  cache.shape = ModelShape::uniform(1, top_k, experts).with_weights(weights);
  cache.num_slots = 1;
  cache.compare_all_picks = true;
  cache.layers = {layer};
  return cache;
}

StepCase good_token(const CacheCase& cache) {
  StepCase step;
  step.num_tokens = step.rows = 1;
  step.slots = {0};
  step.layers.resize(1);
  step.layers[0].written = 1;
  for (int k = 0; k < cache.shape.top_k(); ++k) {
    step.layers[0].ids.push_back(100 + 7 * k % 100);
    if (cache.shape.weight_type() == WeightType::none) continue;
    step.layers[0].weights.push_back(0x3F80U + 77U * static_cast<std::uint32_t>(k));
  }
  return step;
}

// How rows of topk_ids lie in memory: kernels have a way for each.
struct Form {
  int top_k;
  std::int64_t stride;
  std::int64_t offset;
};
constexpr Form kForms[] = {{2, 2, 0},  {5, 6, 0}, {7, 7, 1},   {8, 8, 0},   {8, 8, 1},
                           {8, 16, 0}, {8, 9, 1}, {32, 32, 0}, {64, 64, 0}, {37, 40, 0}};

template <class Check>
void for_each_layer(Check&& check) {
  for (const IdType type :
       {IdType::uint8, IdType::uint16, IdType::int16, IdType::int32, IdType::int64}) {
    for (const WeightType weights : {WeightType::none, WeightType::float32, WeightType::bfloat16}) {
      for (const Form& form : kForms) {
        if (weights == WeightType::bfloat16 && form.top_k > 8) continue;
        SCOPED_TRACE(fmt::format("{}, weights {}, top-{}, stride {}, offset {}", id_type_name(type),
                                 weight_type_name(weights), form.top_k, form.stride, form.offset));
        const LayerCase layer{
            .type = type,
            .stride = form.stride,
            .offset = form.offset,
            .weights = weights == WeightType::none ? weights : WeightType::float32,
            .weight_stride = form.stride,
            .weight_offset = form.offset,
            .gathered = weights != WeightType::none};
        check(one_layer(layer, form.top_k, weights));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(DifferentialCache, FindsAnIdOfNoExpertAtEachPlace) {
  const auto device = GetParam()();
  for_each_layer([&](const CacheCase& cache) {
    Compared compared(*device, cache);
    for (std::size_t k = 0; k < cache.shape.row_ids(); ++k) {
      SCOPED_TRACE(fmt::format("pick {}", k));
      StepCase step = good_token(cache);
      step.layers[0].ids[k] = cache.shape.num_experts();
      compared.step(step);
      if (cache.layers[0].type != IdType::int64) continue;
      step.layers[0].ids[k] = (std::int64_t{1} << 32) + 5;
      compared.step(step);
    }
  });
}

TEST_P(DifferentialCache, FindsAWeightThatDidNotComeAtEachPlace) {
  const auto device = GetParam()();
  for_each_layer([&](const CacheCase& cache) {
    if (cache.shape.weight_type() == WeightType::none) return;
    Compared compared(*device, cache);
    for (std::size_t k = 0; k < cache.shape.row_ids(); ++k) {
      SCOPED_TRACE(fmt::format("pick {}", k));
      StepCase step = good_token(cache);
      step.layers[0].weights[k] = static_cast<std::uint32_t>(kNotGathered);
      compared.step(step);
    }
  });
}

TEST_P(DifferentialCache, FindsAnExpertTwiceAtAnyTwoPlaces) {
  const auto device = GetParam()();
  for_each_layer([&](const CacheCase& cache) {
    if (cache.shape.top_k() > 8 || cache.shape.weight_type() == WeightType::bfloat16) return;
    Compared compared(*device, cache);
    for (std::size_t k = 1; k < cache.shape.row_ids(); ++k) {
      for (std::size_t j = 0; j < k; ++j) {
        SCOPED_TRACE(fmt::format("picks {} and {}", j, k));
        StepCase step = good_token(cache);
        step.layers[0].ids[k] = step.layers[0].ids[j];
        compared.step(step);
      }
    }
  });
}

TEST_P(DifferentialCache, ChecksWhatAFusedKernelWroteAtEachPlace) {
  const auto device = GetParam()();
  for (const int top_k : {1, 2, 3, 8, 11}) {
    const CacheCase cache =
        one_layer({.way = Way::output, .stride = top_k}, top_k, WeightType::none);
    Compared compared(*device, cache);
    for (std::size_t k = 0; k < cache.shape.row_ids(); ++k) {
      SCOPED_TRACE(fmt::format("top-{}, pick {}", top_k, k));
      for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{300}, std::int64_t{-2}}) {
        StepCase step = good_token(cache);
        step.layers[0].ids[k] = id;
        compared.step(step);
      }
      for (std::size_t j = 0; j < k; ++j) {
        StepCase step = good_token(cache);
        step.layers[0].ids[k] = step.layers[0].ids[j];
        compared.step(step);
      }
    }
  }
}

}  // namespace
}  // namespace moetap::test
