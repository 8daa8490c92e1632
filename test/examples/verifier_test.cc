#include "verifier.h"

#include <gtest/gtest.h>

#include <vector>

#include "simulated_worker.h"

namespace demo {
namespace {

// One finished request of 40 rows in a model with ids of the given size, and its rows.
class VerifierTest : public testing::TestWithParam<int> {
 protected:
  VerifierTest() {
    sequence_.request = {"the.csv:2", 5, 30, 11, {1}};
    for (std::int64_t p = 0; p < 41; ++p) {
      sequence_.tokens.push_back(p < 30 ? sequence_.request.prompt_token(p) : sampled_token(5, p));
    }
    const Router router(shape_);
    for (std::size_t p = 0; p < 40; ++p) {
      for (int layer = 0; layer < shape_.num_layers(); ++layer) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(shape_.top_k()));
        router(sequence_.tokens[p], static_cast<std::int64_t>(p), layer, ids.data());
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

  moetap::ModelShape shape_ = moetap::ModelShape::uniform(5, 4, GetParam());
  Sequence sequence_;
  std::vector<std::byte> rows_;
  std::vector<moetap::RowState> states_ =
      std::vector<moetap::RowState>(40, moetap::RowState::present);
  Verifier verifier_{shape_};
};

TEST_P(VerifierTest, AcceptsTheRowsOfTheModel) {
  verifier_.check(sequence_, 0, rows_, states_);
  EXPECT_EQ(verifier_.counts().expected, 40);
  EXPECT_EQ(verifier_.counts().verified, 40);
  EXPECT_TRUE(verifier_.counts().complete());
  EXPECT_TRUE(verifier_.counts().examples.empty());
}

TEST_P(VerifierTest, FindsOneWrongIdAnywhereInARow) {
  for (std::size_t offset = 0; offset < shape_.row_bytes(); ++offset) {
    Verifier verifier(shape_);
    byte(17, offset) ^= std::byte{1};
    verifier.check(sequence_, 0, rows_, states_);
    byte(17, offset) ^= std::byte{1};
    EXPECT_EQ(verifier.counts().wrong, 1);
    EXPECT_EQ(verifier.counts().verified, 39);
    EXPECT_FALSE(verifier.counts().complete());
    const std::size_t layer = offset / id_bytes(shape_.id_type()) / 4;
    ASSERT_EQ(verifier.counts().examples.size(), 1U);
    EXPECT_NE(verifier.counts().examples[0].find("the.csv:2, token 17: expert "),
              std::string::npos);
    EXPECT_NE(verifier.counts().examples[0].find("at layer " + std::to_string(layer)),
              std::string::npos)
        << verifier.counts().examples[0];
  }
}

TEST_P(VerifierTest, FindsARowOfAnotherPosition) {
  std::copy_n(&byte(8, 0), shape_.row_bytes(), &byte(7, 0));
  verifier_.check(sequence_, 0, rows_, states_);
  EXPECT_EQ(verifier_.counts().wrong, 1);
}

TEST_P(VerifierTest, FindsRowsOneOff) {
  verifier_.check(sequence_, 1, std::span(rows_).first(39 * shape_.row_bytes()),
                  std::span(states_).first(39));
  EXPECT_EQ(verifier_.counts().wrong, 39);
}

TEST_P(VerifierTest, CountsRowsThatAreNotPresentAsMissingWhateverTheyHold) {
  states_[3] = moetap::RowState::missing;
  states_[4] = moetap::RowState::stale;
  states_[5] = moetap::RowState::clobbered;
  states_[6] = moetap::RowState::unverified;
  verifier_.check(sequence_, 0, rows_, states_);
  EXPECT_EQ(verifier_.counts().missing, 4);
  EXPECT_EQ(verifier_.counts().verified, 36);
  EXPECT_FALSE(verifier_.counts().complete());
}

INSTANTIATE_TEST_SUITE_P(IdTypes, VerifierTest, testing::Values(64, 512));

// A request in a scheduler, read through a Reader.
class VerifierReads : public testing::Test {
 protected:
  VerifierReads() {
    const auto sampled = run_plan(scheduler_.plan(7), memory_);
    scheduler_.complete(sampled);
  }
  VerifierCounts read() {
    verifier_.read_and_check(reader_, *scheduler_.finished().front(), scheduler_.cache());
    return verifier_.counts();
  }
  Slot slot_of(std::int64_t position) {
    return scheduler_.finished().front()->blocks.at(static_cast<std::size_t>(position / 16)) * 16 +
           position % 16;
  }

  moetap::ModelShape shape_ = moetap::ModelShape::uniform(3, 2, 16);
  SlotRows memory_{shape_, 4 * 16};
  Scheduler scheduler_{{.num_blocks = 4}, {Request{"one", 1, 50, 1, {9}}}};
  moetap::Reader reader_{std::make_unique<SlotRowsReader>(memory_)};
  Verifier verifier_{shape_};
};

TEST_F(VerifierReads, AllButTheLastSampledToken) {
  EXPECT_EQ(read().verified, 50);
  EXPECT_TRUE(verifier_.counts().complete());
}

// H8, H11: right bytes are not enough; they must be of a step in which the request owned the slot.
TEST_F(VerifierReads, RowsOfStepsOutsideTheOwnersWindowAreMissing) {
  memory_.stamps[static_cast<std::size_t>(slot_of(20))] = 6;
  memory_.stamps[static_cast<std::size_t>(slot_of(21))] = 8;
  memory_.stamps[static_cast<std::size_t>(slot_of(22))] = 0;
  EXPECT_EQ(read().missing, 3);
  EXPECT_EQ(verifier_.counts().verified, 47);
}

}  // namespace
}  // namespace demo
