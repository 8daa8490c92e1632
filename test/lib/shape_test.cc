#include <moetap/error.h>
#include <moetap/shape.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

TEST(ModelShape, KeepsLayersInOrderAndCountsBytes) {
  const ModelShape shape({3, 5, 6}, 8, 256);
  EXPECT_EQ(shape.num_layers(), 3);
  EXPECT_EQ(shape.row_ids(), 24u);
  EXPECT_EQ(shape.row_bytes(), 24u);
  EXPECT_EQ(ModelShape({3, 5, 6}, 8, 257).row_bytes(), 48u);
  EXPECT_EQ(shape.layer_index(3), 0);
  EXPECT_EQ(shape.layer_index(6), 2);
  EXPECT_EQ(shape.to_string(), "3 layers x top-8 of 256 experts");
}

TEST(ModelShape, NarrowsToTheSmallestTypeThatHoldsEveryId) {  // H21
  EXPECT_EQ(narrow_type(1), IdType::uint8);
  EXPECT_EQ(narrow_type(256), IdType::uint8);
  EXPECT_EQ(narrow_type(257), IdType::uint16);
  EXPECT_EQ(narrow_type(65536), IdType::uint16);
  expect_throw<ArgumentError>([] { narrow_type(65537); }, {"65537", "65536"});
  expect_throw<ArgumentError>([] { narrow_type(0); }, {"0 experts"});
}

TEST(ModelShape, RefusesWhatNoMixtureOfExpertsCanBe) {  // H26
  expect_throw<ArgumentError>([] { ModelShape({}, 1, 8); }, {"no MoE layers"});
  expect_throw<ArgumentError>([] { ModelShape({0}, 0, 8); }, {"top_k is 0", "8"});
  expect_throw<ArgumentError>([] { ModelShape({0}, 9, 8); }, {"top_k is 9", "8"});
  expect_throw<ArgumentError>([] { ModelShape({0}, 1, 0); }, {"0 experts"});
  expect_throw<ArgumentError>([] { ModelShape({-1, 0}, 1, 8); }, {"-1"});
  expect_throw<ArgumentError>([] { ModelShape({2, 1}, 1, 8); }, {"1 after 2"});
  expect_throw<ArgumentError>([] { ModelShape({2, 2}, 1, 8); }, {"2 after 2"});
  expect_throw<ArgumentError>([] { ModelShape::uniform(1025, 1, 8); }, {"1025", "1 to 1024"});
  expect_throw<ArgumentError>([] { ModelShape::uniform(-1, 1, 8); }, {"-1"});
  expect_throw<ArgumentError>(
      [] {
        std::vector<int> layers(1025);
        for (int i = 0; i < 1025; ++i) layers[static_cast<std::size_t>(i)] = i;
        ModelShape(layers, 1, 8);
      },
      {"1025", "1024"});
}

TEST(ModelShape, LayerWithoutRouterIsARangeErrorThatListsTheOthers) {
  const ModelShape shape({3, 4, 5, 9}, 1, 8);
  expect_throw<RangeError>([&] { shape.layer_index(6); }, {"6", "3-5, 9"});
  expect_throw<RangeError>([&] { shape.layer_index(-1); }, {"-1"});
  expect_throw<RangeError>([&] { shape.layer_index(10); }, {"10"});
}

TEST(ModelShape, CountsAllHiddenLayers) {
  EXPECT_EQ(ModelShape({3, 5}, 2, 8).num_hidden_layers(), 6);  // to the last MoE layer
  EXPECT_EQ(ModelShape({3, 5}, 2, 8, 7).num_hidden_layers(), 7);
  EXPECT_EQ(ModelShape::uniform(4, 2, 8).num_hidden_layers(), 4);
  EXPECT_EQ(ModelShape::known("deepseek-v3").num_hidden_layers(), 61);
  expect_throw<ArgumentError>(
      [] {
        ModelShape({3, 5}, 2, 8, 5);
      },
      {"num_hidden_layers is 5", "layer 5", "6 to 1024"});
  expect_throw<ArgumentError>([] { ModelShape({3, 5}, 2, 8, 0); }, {"num_hidden_layers is 0"});
  expect_throw<ArgumentError>([] { ModelShape({3, 5}, 2, 8, 1025); }, {"1025", "1024"});
  EXPECT_EQ(ModelShape({1023}, 2, 8).num_hidden_layers(), 1024);
  expect_throw<ArgumentError>([] { ModelShape({1024}, 2, 8); }, {"1024", "0 to 1023"});
  expect_throw<ArgumentError>([] { ModelShape({2'147'483'647}, 2, 8); }, {"2147483647"});
}

TEST(ModelShape, IsDeclaredToRepeatExperts) {  // H32
  const ModelShape shape({3, 5}, 2, 8);
  EXPECT_FALSE(shape.repeats_experts());
  const ModelShape repeats = shape.with_weights(WeightType::float32).with_repeated_experts();
  EXPECT_TRUE(repeats.repeats_experts());
  EXPECT_EQ(repeats.to_string(),
            "2 layers x top-2 of 8 experts that may repeat with float32 weights");
  EXPECT_EQ(repeats.with_repeated_experts(false), shape.with_weights(WeightType::float32));
  EXPECT_TRUE(shape.with_repeated_experts().with_weights(WeightType::bfloat16).repeats_experts());
}

TEST(ModelShape, SomeLayersOfItAreOfTheSameModel) {
  const ModelShape shape =
      ModelShape({1, 2, 4, 5}, 2, 8, 9).with_repeated_experts().with_weights(WeightType::float32);
  const ModelShape some = shape.with_layers({2, 5});
  EXPECT_EQ(some,
            ModelShape({2, 5}, 2, 8, 9).with_repeated_experts().with_weights(WeightType::float32));
  EXPECT_EQ(some.row_ids(), 4u);
  expect_throw<ArgumentError>([&] { shape.with_layers({}); }, {"no MoE layers"});
  expect_throw<ArgumentError>([&] { shape.with_layers({2, 1}); }, {"1 after 2"});
  expect_throw<ArgumentError>([&] { shape.with_layers({2, 3, 6}); }, {"3, 6", "1, 2, 4, 5"});
}

TEST(ModelShape, NamesWhatDiffers) {
  const ModelShape shape({1, 2}, 2, 8);
  EXPECT_EQ(shape.difference(shape), "");
  EXPECT_EQ(shape.difference(ModelShape({2, 3}, 2, 8, 4)),
            "MoE layers 1, 2 and 2, 3; num_hidden_layers 3 and 4");
  EXPECT_EQ(shape.difference(ModelShape({1, 2}, 3, 9)), "top_k 2 and 3; num_experts 8 and 9");
  EXPECT_EQ(shape.difference(shape.with_repeated_experts()),
            "repeated experts refused and allowed");
  EXPECT_EQ(shape.difference(shape.with_weights(WeightType::bfloat16)),
            "weights none and bfloat16");
}

TEST(ModelShape, EqualShapesAreInterchangeable) {
  EXPECT_EQ(ModelShape::uniform(3, 2, 8), ModelShape({0, 1, 2}, 2, 8));
  EXPECT_NE(ModelShape::uniform(3, 2, 8), ModelShape({0, 1, 3}, 2, 8));
  EXPECT_NE(ModelShape::uniform(3, 2, 8), ModelShape::uniform(3, 3, 8));
  EXPECT_NE(ModelShape::uniform(3, 2, 8), ModelShape::uniform(3, 2, 9));
  EXPECT_NE(ModelShape({0, 1}, 2, 8), ModelShape({0, 1}, 2, 8, 3));
  EXPECT_NE(ModelShape({0, 1}, 2, 8), ModelShape({0, 1}, 2, 8).with_repeated_experts());
}

TEST(KnownModels, HaveTheirPublishedShapes) {
  const ModelShape deepseek = ModelShape::known("deepseek-v3");
  EXPECT_EQ(deepseek.to_string(), "58 layers x top-8 of 256 experts");
  EXPECT_EQ(deepseek.moe_layers().front(), 3);
  EXPECT_EQ(deepseek.moe_layers().back(), 60);

  const ModelShape llama = ModelShape::known("llama-4-maverick");
  EXPECT_EQ(llama.to_string(), "24 layers x top-1 of 128 experts");
  EXPECT_EQ(llama.moe_layers().front(), 1);
  EXPECT_EQ(llama.moe_layers().back(), 47);

  const ModelShape nemotron = ModelShape::known("nemotron-3-super");
  EXPECT_EQ(nemotron.to_string(), "40 layers x top-22 of 512 experts");
  EXPECT_EQ(nemotron.moe_layers().front(), 1);
  EXPECT_EQ(nemotron.moe_layers().back(), 87);
  EXPECT_EQ(nemotron.num_hidden_layers(), 88);
}

TEST(KnownModels, UnknownNameIsAnErrorThatListsAll) {
  const auto names = ModelShape::known_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    expect_throw<ArgumentError>([] { ModelShape::known("gpt-2"); }, {"gpt-2", name});
  }
}

TEST(KnownModels, MatchTheSharedTable) {
  const auto path =
      std::filesystem::path(MOETAP_SOURCE_ROOT).parent_path() / "shared/data/models.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "there is no " << path;
  std::ifstream file(path);
  const auto models = nlohmann::json::parse(file);
  for (const auto& [name, model] : models.items()) {
    SCOPED_TRACE(name);
    const ModelShape shape = ModelShape::known(name);
    EXPECT_EQ(shape.num_layers(), model["num_moe_layers"]);
    EXPECT_EQ(shape.num_experts(), model["num_experts"]);
    EXPECT_EQ(shape.top_k(), model["top_k"]);
    if (!model.contains("first_moe_layer")) continue;
    EXPECT_EQ(shape.num_hidden_layers(), model["num_hidden_layers"]);
    const int first = model["first_moe_layer"];
    EXPECT_EQ(shape.moe_layers().front(), first);
    for (int i = 1; i < shape.num_layers(); ++i) {
      EXPECT_EQ(shape.layer_index(first + i * model["moe_every"].get<int>()), i);
    }
  }
  EXPECT_EQ(models.size(), ModelShape::known_names().size());
}

}  // namespace
}  // namespace moetap
