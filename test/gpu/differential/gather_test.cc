// A rank's part of topk_ids on its way into the gathered ones, against a plain reference in random
// cases.
#include <moetap/collective.h>
#include <moetap/device_fault.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "test/gpu/differential/seeds.h"
#include "test/gpu/neighbours.h"
#include "test/simulation/dice.h"

namespace moetap::test {
namespace {

using simulation::Dice;

struct GatherCase {
  explicit GatherCase(std::uint64_t seed) {
    Dice dice(seed);
    top_k =
        dice.chance(70) ? 1 + static_cast<int>(dice.draw(8)) : 1 + static_cast<int>(dice.draw(99));
    shared = static_cast<int>(dice.draw(2));
    type = static_cast<IdType>(dice.draw(4));
    stride = top_k + shared + dice.draw(3);
    offset = dice.draw(8);
    weights = static_cast<WeightType>(dice.draw(2));
    weight_stride = top_k + dice.draw(3);
    weight_offset = dice.draw(8);
    rank = static_cast<int>(dice.draw(3));
    for (int i = 0; i < 4; ++i) parts.push_back(dice.draw(i == rank && dice.chance(50) ? 200 : 20));
    const auto size = [&](std::int64_t elements) {
      return static_cast<std::size_t>(parts[static_cast<std::size_t>(rank)] * elements);
    };
    ids.resize(size(stride) + static_cast<std::size_t>(offset));
    for (std::int64_t& id : ids) id = draw_id(dice);
    bits.resize(size(weight_stride) + static_cast<std::size_t>(weight_offset));
    for (std::uint32_t& weight : bits) weight = static_cast<std::uint32_t>(dice.number());
  }

  // Any value of the type, often at the ends of int32.
  std::int64_t draw_id(Dice& dice) const {
    const std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const std::int64_t wide[] = {most,      most + 1,     -most - 1,
                                 -most - 2, 2 * most + 2, static_cast<std::int64_t>(dice.number())};
    const std::int64_t id = dice.chance(20) ? dice.any_of(wide) : dice.draw(300) - 1;
    switch (type) {
      case IdType::uint8:
        return static_cast<std::uint8_t>(id);
      case IdType::uint16:
        return static_cast<std::uint16_t>(id);
      case IdType::int16:
        return static_cast<std::int16_t>(id);
      case IdType::int32:
        return static_cast<std::int32_t>(id);
      case IdType::int64:
        break;
    }
    return id;
  }

  int top_k = 1, shared = 0, rank = 0;
  IdType type{};
  WeightType weights{};
  std::int64_t stride = 1, offset = 0, weight_stride = 1, weight_offset = 0;
  std::vector<std::int64_t> parts;  // rows of each rank
  std::vector<std::int64_t> ids;    // elements in memory
  std::vector<std::uint32_t> bits;  // of weights, which take the lower ones
};

std::vector<std::int32_t> expected_of(const GatherCase& c) {
  std::vector<std::int32_t> all;
  const int width = c.weights == WeightType::none ? c.top_k : 2 * c.top_k;
  for (int rank = 0; rank < 4; ++rank) {
    for (std::int64_t row = 0; row < c.parts[static_cast<std::size_t>(rank)]; ++row) {
      if (rank != c.rank) {
        all.insert(all.end(), static_cast<std::size_t>(width), kNotGathered);
        continue;
      }
      for (std::int64_t k = 0; k < c.top_k; ++k) {
        const std::int64_t id = c.ids[static_cast<std::size_t>(c.offset + row * c.stride + k)];
        const bool fits = id >= std::numeric_limits<std::int32_t>::min() &&
                          id <= std::numeric_limits<std::int32_t>::max();
        all.push_back(fits ? static_cast<std::int32_t>(id)
                           : std::numeric_limits<std::int32_t>::min());
      }
      for (std::int64_t k = 0; k < width - c.top_k; ++k) {
        const std::uint32_t weight =
            c.bits[static_cast<std::size_t>(c.weight_offset + row * c.weight_stride + k)];
        all.push_back(static_cast<std::int32_t>(
            c.weights == WeightType::float32 ? weight : weight % 65'536 * 65'536));
      }
    }
  }
  return all;
}

// Elements of `bytes` each, on the device.
template <class T>
Buffer upload_narrow(Device& device, Stream& stream, const std::vector<T>& values,
                     std::size_t bytes) {
  std::vector<std::byte> memory(values.size() * bytes);
  for (std::size_t i = 0; i < values.size() && bytes > 0; ++i) {
    std::memcpy(&memory[i * bytes], &values[i], bytes);
  }
  return upload(device, stream, memory);
}

class DifferentialGather : public testing::TestWithParam<DeviceMaker> {};
INSTANTIATE_TEST_SUITE_P(, DifferentialGather, testing::ValuesIn(differential_devices()),
                         device_name);

TEST_P(DifferentialGather, PacksWhatTheReferencePacks) {
  for_each_case(GetParam(), 2, [](std::uint64_t seed, Device& device) {
    const GatherCase c(seed);
    SCOPED_TRACE(fmt::format("top-{} of {}, weights {}", c.top_k, id_type_name(c.type),
                             weight_type_name(c.weights)));
    const auto stream = device.make_stream();
    const std::size_t id = id_bytes(c.type), weight = weight_bytes(c.weights);
    const Buffer ids = upload_narrow(device, *stream, c.ids, id);
    const Buffer weights = upload_narrow(device, *stream, c.bits, weight);
    TopkIds part{.data = ids.data() + static_cast<std::size_t>(c.offset) * id,
                 .type = c.type,
                 .rows = c.parts[static_cast<std::size_t>(c.rank)],
                 .columns = c.top_k + c.shared,
                 .row_stride = c.stride};
    if (weight > 0) {
      part.weights = {weights.data() + static_cast<std::size_t>(c.weight_offset) * weight,
                      c.weights, c.weight_stride};
    }
    Neighbours ranks(4, c.rank);
    PartGather gather(device, ranks, c.top_k, 300, c.shared, c.weights);
    const TopkIds whole = gather.gather(part, c.parts, *stream);
    const std::vector<std::int32_t> expected = expected_of(c);
    ASSERT_EQ(whole.rows * whole.row_stride, std::ssize(expected));
    ASSERT_EQ(download<std::int32_t>(device, *stream, whole.data, expected.size()), expected);
  });
}

}  // namespace
}  // namespace moetap::test
