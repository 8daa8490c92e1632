#include "examples/simulator/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace demo {
namespace {

// A request of 40 rows in a model with ids of the given size, and its rows.
class VerifierTest : public testing::TestWithParam<int> {
 protected:
  VerifierTest() {
    const Router router(shape_);
    for (std::size_t p = 0; p < 40; ++p) {
      for (int layer = 0; layer < shape_.num_layers(); ++layer) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(shape_.top_k()));
        const auto position = static_cast<std::int64_t>(p);
        router(p < 30 ? request_.prompt_token(position) : sampled_token(5, position), position,
               layer, ids.data());
        for (const std::int32_t id : ids) {
          rows_.push_back(static_cast<std::byte>(id & 0xff));
          if (shape_.id_type() == moetap::IdType::uint16) {
            rows_.push_back(static_cast<std::byte>(id >> 8));
          }
        }
      }
    }
  }

  std::byte& byte(std::size_t row, std::size_t offset) {
    return rows_.at(row * shape_.row_bytes() + offset);
  }

  // Checks the first `count` rows, as those of positions from `first` on.
  const VerifierCounts& check(std::int64_t first = 0, std::int64_t count = 40) {
    moetap::Routes routes(shape_, {first, first + count});
    std::copy_n(rows_.begin(), routes.bytes().size(), routes.bytes().begin());
    std::copy_n(states_.begin(), count, routes.states().begin());
    verifier_.check(request_, {0, 40}, routes);
    return verifier_.counts();
  }

  moetap::ModelShape shape_ = moetap::ModelShape::uniform(5, 4, GetParam());
  Request request_{"the.csv:2", 5, 30, 11, {1}};
  std::vector<std::byte> rows_;
  std::vector<moetap::RowState> states_ =
      std::vector<moetap::RowState>(40, moetap::RowState::present);
  Verifier verifier_{shape_};
};

TEST_P(VerifierTest, AcceptsTheRowsOfTheModel) {
  EXPECT_EQ(check().expected, 40);
  EXPECT_EQ(verifier_.counts().verified, 40);
  EXPECT_TRUE(verifier_.counts().complete());
  EXPECT_TRUE(verifier_.counts().examples.empty());
}

TEST_P(VerifierTest, FindsOneWrongIdAnywhereInARow) {
  for (std::size_t offset = 0; offset < shape_.row_bytes(); ++offset) {
    verifier_ = Verifier(shape_);
    byte(17, offset) ^= std::byte{1};
    const VerifierCounts& counts = check();
    byte(17, offset) ^= std::byte{1};
    EXPECT_EQ(counts.wrong, 1);
    EXPECT_EQ(counts.verified, 39);
    EXPECT_FALSE(counts.complete());
    const std::size_t layer = offset / id_bytes(shape_.id_type()) / 4;
    ASSERT_EQ(counts.examples.size(), 1U);
    EXPECT_NE(counts.examples[0].find("the.csv:2, token 17: expert "), std::string::npos);
    EXPECT_NE(counts.examples[0].find("at layer " + std::to_string(layer)), std::string::npos)
        << counts.examples[0];
  }
}

TEST(VerifierOfWeights, FindsOneWrongBitOfAWeight) {
  for (const auto type : {moetap::WeightType::float32, moetap::WeightType::bfloat16}) {
    const auto shape = moetap::ModelShape::uniform(5, 3, 100).with_weights(type);
    const Request request{"the.csv:2", 5, 30, 11, {1}};
    const Router router(shape);
    moetap::Routes routes(shape, {0, 3});
    std::fill(routes.bytes().begin(), routes.bytes().end(), std::byte{0});
    const std::size_t width = moetap::weight_bytes(type);
    for (std::size_t p = 0; p < 3; ++p) {
      std::byte* const row = routes.bytes().data() + p * shape.row_bytes();
      const auto position = static_cast<std::int64_t>(p);
      for (int layer = 0; layer < 5; ++layer) {
        router(request.prompt_token(position), position, layer,
               reinterpret_cast<std::uint8_t*>(row) + layer * 3);
        for (int k = 0; k < 3; ++k) {
          const std::uint32_t bits =
              router.weight(request.prompt_token(position), position, layer, k) >> (32 - 8 * width);
          std::memcpy(row + shape.weights_offset() + (layer * 3 + k) * width, &bits, width);
        }
      }
      routes.states()[p] = moetap::RowState::present;
    }
    Verifier right(shape);
    right.check(request, {0, 3}, routes);
    EXPECT_EQ(right.counts().verified, 3);
    routes.bytes().back() ^= std::byte{1};
    Verifier wrong(shape);
    wrong.check(request, {0, 3}, routes);
    EXPECT_EQ(wrong.counts().verified, 2);
    EXPECT_EQ(wrong.counts().wrong, 1);
    ASSERT_EQ(wrong.counts().examples.size(), 1U);
    EXPECT_TRUE(wrong.counts().examples[0].find("token 2: another weight") != std::string::npos);
  }
}

TEST_P(VerifierTest, FindsARowOfAnotherPosition) {
  std::copy_n(&byte(8, 0), shape_.row_bytes(), &byte(7, 0));
  EXPECT_EQ(check().wrong, 1);
}

// H16, H19: too few rows, or those of other positions, however right each is.
TEST_P(VerifierTest, FindsRowsOfAnotherRange) {
  EXPECT_EQ(check(0, 39).wrong, 40);
  EXPECT_EQ(check(1, 39).wrong, 80);
  EXPECT_EQ(verifier_.counts().verified, 0);
  EXPECT_EQ(verifier_.counts().examples.at(0), "the.csv:2: rows [0, 39) instead of [0, 40)");
}

TEST_P(VerifierTest, CountsRowsThatAreNotPresentWhateverTheyHold) {
  states_[3] = moetap::RowState::missing;
  states_[4] = moetap::RowState::stale;
  states_[5] = moetap::RowState::clobbered;
  EXPECT_EQ(check().missing, 1);
  EXPECT_EQ(verifier_.counts().stale, 1);
  EXPECT_EQ(verifier_.counts().clobbered, 1);
  EXPECT_EQ(verifier_.counts().verified, 37);
  EXPECT_FALSE(verifier_.counts().complete());
}

TEST_P(VerifierTest, ComparesRowsForWhichNobodyVouches) {
  states_[6] = states_[7] = moetap::RowState::unverified;
  byte(7, 0) ^= std::byte{1};
  EXPECT_EQ(check().verified, 39);
  EXPECT_EQ(verifier_.counts().wrong, 1);
}

INSTANTIATE_TEST_SUITE_P(IdTypes, VerifierTest, testing::Values(64, 512));

}  // namespace
}  // namespace demo
