// Our router's kernels, with and without a sink, against a plain reference in random cases.
#include <moetap/topk_router.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/internal/device_cache.h"
#include "test/gpu/differential/bfloat16.h"
#include "test/gpu/differential/seeds.h"
#include "test/gpu/router_reference.h"
#include "test/simulation/dice.h"

namespace moetap::test {
namespace {

using simulation::Dice;

RouterOptions draw_options(Dice& dice) {
  RouterOptions options;
  const int usual[] = {1, 2, 8, 31, 32, 33, 60, 64, 128, 160, 256, 384, 511, 512};
  options.num_experts = dice.chance(70) ? dice.any_of(usual) : 1 + static_cast<int>(dice.draw(511));
  do {
    options.num_groups = dice.chance(50) ? 1 : 1 + static_cast<int>(dice.draw(31));
  } while (options.num_experts % options.num_groups != 0);
  options.top_groups = 1 + static_cast<int>(dice.draw(options.num_groups - 1));
  const int choices = options.num_experts / options.num_groups * options.top_groups;
  options.top_k = std::min(choices, 1 + static_cast<int>(dice.draw(dice.chance(80) ? 7 : 40)));
  options.scoring = dice.chance(50) ? Scoring::softmax : Scoring::sigmoid;
  options.renormalize = dice.chance(50);
  options.scale = dice.chance(50) ? 1.0F : 2.5F;
  return options;
}

// Multiples of 1/64, so that equal ones are common. Now and then one is no finite number.
float draw_logit(Dice& dice, int range, bool strange) {
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  if (strange && dice.chance(30)) return dice.any_of(odd);
  return static_cast<float>(dice.draw(2 * range) - range) / 64;
}

struct RouterCase {
  explicit RouterCase(std::uint64_t seed) {
    Dice dice(seed);
    options = draw_options(dice);
    rows = dice.draw(12);
    first_row = dice.draw(rows);
    num_tokens = dice.draw(rows - first_row);
    bounded = dice.chance(50);
    weights = static_cast<WeightType>(dice.draw(2));
    const int range = dice.chance(70) ? 256 : 3;
    const auto experts = static_cast<std::size_t>(options.num_experts);
    if (dice.chance(50)) {
      for (std::size_t i = 0; i < experts; ++i) {
        const float other = static_cast<float>(dice.draw(1 << 20)) / (1 << 22);
        bias.push_back(i > 0 && dice.chance(30) ? bias[i - 1] : other);
      }
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool strange = dice.chance(20);
      std::vector<float> token(experts);
      int tries = 0;
      do {
        if (++tries > 1000) throw std::logic_error("choices that are never far enough apart");
        for (float& logit : token) logit = draw_logit(dice, range, strange);
      } while (route_plainly(options, token, bias).close);
      expected.push_back(route_plainly(options, token, bias));
      logits.insert(logits.end(), token.begin(), token.end());
    }
  }

  RouterOptions options;
  std::int64_t rows = 0;       // of the router
  std::int64_t first_row = 0;  // of this rank
  std::int64_t num_tokens = 0;
  bool bounded = false;  // the sink is told where this rank's rows end
  WeightType weights{};  // of the cache's rows
  std::vector<float> bias, logits;
  std::vector<RoutedToken> expected;
};

// What the router wrote to its own buffers.
struct Written {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

class RouterRun {
 public:
  RouterRun(Device& device, const RouterCase& router)
      : case_(router),
        device_(device),
        stream_(device.make_stream()),
        logits_(upload(device, *stream_, router.logits)),
        bias_(upload(device, *stream_, router.bias)),
        ids_(device.allocate(picks() * sizeof(std::int32_t))),
        weights_(device.allocate(picks() * sizeof(float))) {}

  Written run() {
    launch_router(case_.options, buffers(), *stream_);
    return written();
  }
  // The same with a capture. `record` is then the step's.
  Written run_captured(const ModelShape& shape, std::vector<std::byte>& record) {
    DeviceCache cache(device_, shape, 12, "differential/router");
    const std::int64_t end =
        case_.bounded ? case_.first_row + case_.num_tokens : DeviceCache::kAllRows;
    const RouteSink sink = cache.sink(0, case_.first_row, end);
    std::vector<Slot> slots;
    for (std::int64_t i = 0; i < case_.num_tokens; ++i) slots.emplace_back(i);
    const Buffer slot_mapping = upload(device_, *stream_, slots);
    const std::size_t bytes = StepRecordLayout(shape, case_.num_tokens).bytes;
    const Buffer memory = device_.allocate(bytes);
    stream_->fill(memory.data(), 0, bytes);
    cache.begin_step(1, case_.num_tokens, 0, *stream_);
    launch_router(case_.options, buffers(), sink, *stream_);
    cache.snapshot(slot_mapping.as<const Slot>(), case_.num_tokens, 12, memory.data(), *stream_);
    record = download(device_, *stream_, memory.data(), bytes);
    return written();
  }

 private:
  std::size_t picks() const {
    return static_cast<std::size_t>(case_.rows) * static_cast<std::size_t>(case_.options.top_k);
  }
  RouterBuffers buffers() const {
    return {logits_.as<float>(), case_.bias.empty() ? nullptr : bias_.as<float>(),
            ids_.as<std::int32_t>(), weights_.as<float>(), case_.rows};
  }
  Written written() {
    return {download<std::int32_t>(device_, *stream_, ids_.data(), picks()),
            download<float>(device_, *stream_, weights_.data(), picks())};
  }

  const RouterCase& case_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Buffer logits_, bias_, ids_, weights_;
};

void expect_picks(const RouterCase& router, const Written& written) {
  const auto top_k = static_cast<std::size_t>(router.options.top_k);
  for (std::size_t row = 0; row < router.expected.size(); ++row) {
    const RoutedToken& expected = router.expected[row];
    for (std::size_t k = 0; k < top_k; ++k) {
      const double weight = expected.weights[k];
      ASSERT_EQ(written.ids[row * top_k + k], expected.ids[k]) << "row " << row << " pick " << k;
      ASSERT_NEAR(written.weights[row * top_k + k], weight, 1e-6 + 2e-5 * std::abs(weight))
          << "row " << row << " pick " << k;
    }
  }
}

// The step has what the router wrote, and its missing picks are missing.
void expect_record(const RouterCase& router, const ModelShape& shape, const Written& written,
                   std::vector<std::byte>& bytes) {
  const StepRecordView record(shape, router.num_tokens, bytes);
  ASSERT_EQ(fault_of(record, shape, 1, 12), std::nullopt);
  const auto top_k = static_cast<std::size_t>(router.options.top_k);
  const std::size_t width = id_bytes(shape.id_type()), weight = weight_bytes(shape.weight_type());
  for (std::size_t i = 0; i < static_cast<std::size_t>(router.num_tokens); ++i) {
    const std::byte* const row = &record.rows[i * shape.row_bytes()];
    bool missing = false;
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::size_t at = (static_cast<std::size_t>(router.first_row) + i) * top_k + k;
      if (written.ids[at] == -1) {
        missing = true;
        continue;
      }
      std::uint32_t id = 0, bits = 0, given = 0;
      std::memcpy(&id, row + k * width, width);
      ASSERT_EQ(id, written.ids[at]) << "token " << i << " pick " << k;
      if (weight == 0) continue;
      std::memcpy(&bits, row + shape.weights_offset() + k * weight, weight);
      std::memcpy(&given, &written.weights[at], sizeof given);
      ASSERT_EQ(bits, weight == 2 ? nearest_bfloat16(given) : given) << "token " << i;
    }
    const Slot slot(static_cast<std::int64_t>(i));
    ASSERT_EQ(record.slots[i], missing ? MarkedSlot::missing(slot) : MarkedSlot(slot));
  }
}

class DifferentialRouter : public testing::TestWithParam<DeviceMaker> {};
INSTANTIATE_TEST_SUITE_P(, DifferentialRouter, testing::ValuesIn(differential_devices()),
                         device_name);

TEST_P(DifferentialRouter, PicksAndCapturesWhatTheReferencePicks) {
  for_each_case(GetParam(), 4, [](std::uint64_t seed, Device& device) {
    const RouterCase router(seed);
    SCOPED_TRACE(fmt::format("top-{} of {} experts in {} of {} groups, {} rows",
                             router.options.top_k, router.options.num_experts,
                             router.options.top_groups, router.options.num_groups, router.rows));
    RouterRun run(device, router);
    expect_picks(router, run.run());
    if (router.options.num_experts < 2) return;  // no model
    const ModelShape shape =
        ModelShape::uniform(1, router.options.top_k, router.options.num_experts)
            .with_weights(router.weights);
    std::vector<std::byte> record;
    const Written written = run.run_captured(shape, record);
    expect_picks(router, written);
    expect_record(router, shape, written, record);
  });
}

}  // namespace
}  // namespace moetap::test
