#include <moetap/error.h>
#include <moetap/topology.h>

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

const ModelShape kModel({1, 2, 3, 5}, 2, 64);

// Two stages of all layers, two data- and four tensor-parallel ranks.
Topology pipeline() {
  return {.dp_size = 2, .tp_size = 4, .pp_size = 2, .ep_size = 8, .stage_layers = {{1, 2}, {3, 5}}};
}

void refused(const std::function<void(Topology&)>& change,
             std::initializer_list<std::string_view> parts) {
  Topology topology = pipeline();
  ASSERT_NO_THROW(topology.validate(kModel));
  change(topology);
  expect_throw<ArgumentError>([&] { topology.validate(kModel); }, parts);
}

TEST(Topology, OfOneRankNeedsNothingElse) {
  const Topology alone;
  EXPECT_NO_THROW(alone.validate(kModel));
  EXPECT_TRUE(alone.captures());
  EXPECT_TRUE(alone.publishes());
  EXPECT_EQ(alone.moe_stages(), std::vector{0});
  EXPECT_EQ(alone.stage_shape(kModel, 0), kModel);
}

TEST(Topology, RefusesRanksOutsideTheirSizes) {
  refused([](Topology& t) { t.dp_rank = 2; }, {"data-parallel", "2"});
  refused([](Topology& t) { t.dp_rank = -1; }, {"data-parallel", "-1"});
  refused([](Topology& t) { t.tp_rank = 4; }, {"tensor-parallel", "4"});
  refused([](Topology& t) { t.pp_rank = 2; }, {"pipeline", "2"});
  refused([](Topology& t) { t.output_rank = 4; }, {"output", "4"});
  refused([](Topology& t) { t.dp_size = 0; }, {"data-parallel", "0"});
}

TEST(Topology, RefusesContextParallelism) {
  refused([](Topology& t) { t.cp_size = 2; }, {"context parallelism", "2", "cp_size 1"});
}

TEST(Topology, RefusesExpertsOverSomeOddNumberOfRanks) {
  refused([](Topology& t) { t.ep_size = 3; }, {"ep_size is 3", "8"});
  refused([](Topology& t) { t.ep_size = 0; }, {"ep_size is 0"});
  refused([](Topology& t) { t.dp_size = t.tp_size = 65536, t.ep_size = 3; }, {"4294967296"});
}

TEST(Topology, RefusesSplitTokensThatNobodyGathers) {  // H6
  refused([](Topology& t) { t.sp_size = 4; }, {"split over 4 ranks", "gathered"});
}

TEST(Topology, RefusesTokensSplitOverSomeRanks) {
  refused(
      [](Topology& t) {
        t.sp_size = 2;
        t.parts = SequenceParts::gathered;
      },
      {"sp_size is 2", "(4)"});
}

TEST(Topology, RefusesAGatherOfTokensThatAreNotSplit) {
  refused([](Topology& t) { t.parts = SequenceParts::gathered; }, {"sp_size is 1"});
  refused([](Topology& t) { t.parts = SequenceParts::published; }, {"sp_size is 1"});
}

TEST(Topology, RefusesPartsOfOtherRanksTokens) {  // H5
  for (const RankLayout layout : {RankLayout::concatenated, RankLayout::padded}) {
    refused(
        [&](Topology& t) {
          t.sp_size = 4;
          t.parts = SequenceParts::gathered;
          t.layout = layout;
        },
        {"layout must be local"});
  }
}

TEST(Topology, RefusesALayerInTwoStages) {
  refused([](Topology& t) { t.stage_layers = {{1, 2, 3}, {3, 5}}; }, {"layer 3", "stages 0 and 1"});
}

TEST(Topology, RefusesALayerInNoStage) {
  refused([](Topology& t) { t.stage_layers = {{1}, {5}}; }, {"2, 3", "no pipeline stage"});
}

TEST(Topology, RefusesALayerThatTheModelLacks) {
  refused(
      [](Topology& t) {
        t.stage_layers = {{1, 2}, {3, 4, 5}};
      },
      {"stage 1", "layer 4", "1-3, 5"});
}

TEST(Topology, RefusesLayersOutOfOrder) {
  refused([](Topology& t) { t.stage_layers = {{2, 1}, {3, 5}}; }, {"layer 1 after layer 2"});
  refused([](Topology& t) { t.stage_layers = {{1, 1, 2}, {3, 5}}; }, {"layer 1 after layer 1"});
}

TEST(Topology, RefusesAnotherNumberOfStages) {
  refused([](Topology& t) { t.pp_size = 3; }, {"2 entries", "3 pipeline stages"});
  refused([](Topology& t) { t.stage_layers.clear(); }, {"0 entries", "2 pipeline stages"});
}

TEST(Topology, OnlyTheOutputRankPublishes) {
  Topology topology = pipeline();
  topology.output_rank = 2;
  for (topology.tp_rank = 0; topology.tp_rank < 4; ++topology.tp_rank) {
    EXPECT_TRUE(topology.captures());
    EXPECT_EQ(topology.publishes(), topology.tp_rank == 2) << topology.tp_rank;
  }
}

TEST(Topology, EachRankPublishesItsPartWhereThatIsConfigured) {  // H6
  Topology topology = pipeline();
  topology.sp_size = 4;
  topology.parts = SequenceParts::published;
  ASSERT_NO_THROW(topology.validate(kModel));
  for (topology.tp_rank = 0; topology.tp_rank < 4; ++topology.tp_rank) {
    EXPECT_TRUE(topology.publishes()) << topology.tp_rank;
  }
}

TEST(Topology, StagesHaveTheirOwnLayers) {
  const Topology topology = pipeline();
  EXPECT_EQ(topology.stage_shape(kModel, 0), ModelShape({1, 2}, 2, 64, kModel.num_hidden_layers()));
  EXPECT_EQ(topology.stage_shape(kModel, 1), ModelShape({3, 5}, 2, 64, kModel.num_hidden_layers()));
  EXPECT_THROW((void)topology.stage_shape(kModel, 2), RangeError);
  EXPECT_THROW((void)topology.stage_shape(kModel, -1), RangeError);
}

TEST(Topology, AStageWithoutMoeLayersTakesNoPart) {  // H26
  Topology topology = pipeline();
  topology.pp_size = 3;
  topology.stage_layers = {{}, {1, 2}, {3, 5}};
  ASSERT_NO_THROW(topology.validate(kModel));
  EXPECT_EQ(topology.moe_stages(), (std::vector{1, 2}));
  EXPECT_FALSE(topology.captures());
  EXPECT_FALSE(topology.publishes());
  topology.pp_rank = 1;
  EXPECT_TRUE(topology.captures());
  EXPECT_TRUE(topology.publishes());
  expect_throw<ArgumentError>([&] { (void)topology.stage_shape(kModel, 0); },
                              {"stage 0", "no MoE layers"});
}

TEST(Topology, AnotherNumberOfStagesIsRefusedByEachCall) {
  Topology topology = pipeline();
  for (const int stages : {1, 3}) {
    topology.pp_size = stages;
    for (const auto& call :
         {std::function<void()>([&] { (void)topology.moe_stages(); }),
          std::function<void()>([&] { (void)topology.captures(); }),
          std::function<void()>([&] { (void)topology.publishes(); }),
          std::function<void()>([&] { (void)topology.stage_shape(kModel, 0); })}) {
      expect_throw<ArgumentError>(call, {"2 entries", std::to_string(stages)});
    }
  }
  topology.pp_size = 2;
  for (const int rank : {-1, 2}) {
    topology.pp_rank = rank;
    expect_throw<ArgumentError>([&] { (void)topology.captures(); }, {std::to_string(rank)});
  }
}

}  // namespace
}  // namespace moetap
