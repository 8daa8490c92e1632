// The configurations here are cut down from the families' published config.json files.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

std::vector<int> range(int first, int end, int step = 1) {
  std::vector<int> layers;
  for (int i = first; i < end; i += step) layers.push_back(i);
  return layers;
}

struct Family {
  const char* name;
  const char* json;
  ModelShape shape;
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class ConfigFamily : public testing::TestWithParam<Family> {};

TEST_P(ConfigFamily, IsRead) {
  const ModelShape shape = ModelShape::from_config(GetParam().json);
  EXPECT_EQ(shape.moe_layers(), GetParam().shape.moe_layers());
  EXPECT_EQ(shape, GetParam().shape) << shape.to_string();
}

const Family kFamilies[] = {
    {"Mixtral", R"({"num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2})",
     ModelShape::known("mixtral-8x7b")},
    {"DeepSeekV3",
     R"({"num_hidden_layers": 61, "n_routed_experts": 256, "n_shared_experts": 1,
         "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
         "num_nextn_predict_layers": 1})",
     ModelShape::known("deepseek-v3")},
    {"DeepSeekFreq",
     R"({"num_hidden_layers": 8, "n_routed_experts": 64, "num_experts_per_tok": 6,
         "first_k_dense_replace": 1, "moe_layer_freq": 2})",
     {range(2, 8, 2), 6, 64, 8}},
    {"KimiLinear",
     R"({"num_hidden_layers": 27, "num_experts": 256, "num_experts_per_token": 8,
         "first_k_dense_replace": 1, "moe_layer_freq": 1})",
     {range(1, 27), 8, 256}},
    {"KimiTextConfig",
     R"({"model_type": "kimi_k25", "text_config": {"num_hidden_layers": 61,
         "n_routed_experts": 384, "num_experts_per_tok": 8, "first_k_dense_replace": 1}})",
     ModelShape::known("kimi-k2")},
    {"MiMoFlags",
     R"({"num_hidden_layers": 4, "n_routed_experts": 256, "num_experts_per_tok": 8,
         "moe_layer_freq": [0, 1, 1, 1]})",
     {range(1, 4), 8, 256}},
    {"Qwen3",
     R"({"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8,
         "decoder_sparse_step": 1, "mlp_only_layers": []})",
     ModelShape::known("qwen3-30b-a3b")},
    {"QwenSparseStepAndDenseLayers",
     R"({"num_hidden_layers": 8, "num_experts": 60, "num_experts_per_tok": 4,
         "decoder_sparse_step": 2, "mlp_only_layers": [3]})",
     {{1, 5, 7}, 4, 60}},
    {"QwenOmni",
     R"({"thinker_config": {"audio_config": {"num_hidden_layers": 32}, "text_config":
         {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}}})",
     ModelShape::known("qwen3-30b-a3b")},
    {"Llama4Step",
     R"({"text_config": {"num_hidden_layers": 48, "num_local_experts": 128,
         "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}, "vision_config": {}})",
     ModelShape::known("llama-4-maverick")},
    {"Llama4ListAndStep",
     R"({"num_hidden_layers": 4, "num_local_experts": 16, "num_experts_per_tok": 1,
         "interleave_moe_layer_step": 2, "moe_layers": [1, 3]})",
     {{1, 3}, 1, 16}},
    {"Llama4List",
     R"({"num_hidden_layers": 4, "num_local_experts": 16, "num_experts_per_tok": 1,
         "moe_layers": [0, 3]})",
     {{0, 3}, 1, 16}},
    {"GptOss",
     R"({"num_hidden_layers": 36, "num_local_experts": 128, "experts_per_token": 4,
         "num_experts_per_tok": 4})",
     ModelShape::known("gpt-oss-120b")},
    {"NemotronH",
     R"({"num_hidden_layers": 9, "hybrid_override_pattern": "MEM*EME-E", "n_routed_experts": 512,
         "num_experts_per_tok": 22})",
     {{1, 4, 6, 8}, 22, 512}},
    {"NemotronHWithoutCount",
     R"({"hybrid_override_pattern": "ME*E", "n_routed_experts": 8, "num_experts_per_tok": 2})",
     {{1, 3}, 2, 8}},
    {"Gemma4",
     R"({"text_config": {"num_hidden_layers": 30, "num_experts": 128, "top_k_experts": 8,
         "enable_moe_block": true}})",
     ModelShape::uniform(30, 8, 128)},
    {"Dbrx", R"({"n_layers": 40, "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}})",
     ModelShape::uniform(40, 4, 16)},
    {"Ernie",
     R"({"num_hidden_layers": 28, "moe_num_experts": 64, "moe_k": 6, "moe_layer_start_index": 1,
         "moe_layer_end_index": -1, "moe_layer_interval": 1})",
     {range(1, 28), 6, 64}},
    {"ErnieEnd",
     R"({"num_hidden_layers": 10, "moe_num_experts": 64, "moe_k": 6, "moe_layer_start_index": 3,
         "moe_layer_end_index": 8, "moe_layer_interval": 2})",
     {{3, 5, 7}, 6, 64, 10}},
    {"Step3",
     R"({"text_config": {"num_hidden_layers": 6, "moe_num_experts": 48, "moe_top_k": 3,
         "moe_layers_enum": "3,4,5"}})",
     {range(3, 6), 3, 48}},
    {"HunYuanLists", R"({"num_hidden_layers": 3, "num_experts": 64, "moe_topk": [8, 8, 8]})",
     ModelShape::uniform(3, 8, 64)},
    {"LongCatZeroExperts",
     R"({"num_layers": 28, "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12})",
     ModelShape::uniform(28, 12, 768)},
    {"Jamba",
     R"({"num_hidden_layers": 8, "num_experts": 16, "num_experts_per_tok": 2,
         "expert_layer_period": 2, "expert_layer_offset": 1})",
     {range(1, 8, 2), 2, 16}},
    {"Arctic",
     R"({"num_hidden_layers": 6, "num_local_experts": 128, "num_experts_per_tok": 2,
         "moe_layer_frequency": 2})",
     {range(1, 6, 2), 2, 128}},
    {"Lfm2",
     R"({"num_hidden_layers": 24, "num_experts": 32, "num_experts_per_tok": 4,
         "num_dense_layers": 2})",
     {range(2, 24), 4, 32}},
    {"MlpTypes",
     R"({"num_hidden_layers": 4, "n_routed_experts": 64, "num_experts_per_tok": 4,
         "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]})",
     {{1, 2}, 4, 64, 4}},
    {"MlpTypesWinOverTheNumberOfDenseLayers",
     R"({"num_hidden_layers": 4, "first_k_dense_replace": 2, "num_experts": 4,
         "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]})",
     {{1, 2}, 2, 4, 4}},
    {"InklingDenseIndex",
     R"({"text_config": {"num_hidden_layers": 5, "dense_mlp_idx": 2, "n_routed_experts": 256,
         "num_experts_per_tok": 6}, "mtp_config": {"num_nextn_predict_layers": 8}})",
     {range(2, 5), 6, 256}},
    {"ExaoneFlags",
     R"({"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
         "first_last_k_dense_replace": 1, "is_moe_layer": [false, true, 1, 0]})",
     {{1, 2}, 2, 8, 4}},
    {"NemotronBlockTypes",
     R"({"num_hidden_layers": 5, "n_routed_experts": 128, "num_experts_per_tok": 6,
         "layers_block_type": ["mamba", "moe", "attention", "moe", "mlp"],
         "mtp_layers_block_type": ["attention", "moe"]})",
     {{1, 3}, 6, 128, 5}},
    {"NemotronLayerTypesWithoutCount",
     R"({"n_routed_experts": 128, "num_experts_per_tok": 6,
         "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]})",
     {{1, 3}, 6, 128}},
    {"BlockTypesOfAttentionSayNothingOfExperts",
     R"({"num_hidden_layers": 3, "num_experts": 16, "num_experts_per_tok": 2,
         "layer_types": ["full_attention", "linear_attention", "compressed_sparse_attention"],
         "layers_block_type": ["mamba", "mamba", "attention"]})",
     ModelShape::uniform(3, 2, 16)},
    {"HunYuanSkipped",
     R"({"num_hidden_layers": 4, "num_experts": [64, 64, 64, 64], "moe_topk": [8, 8, 8, 8],
         "moe_layer_num_skipped": 1})",
     {range(1, 4), 8, 64}},
    {"NomicEveryN",
     R"({"n_layer": 6, "num_experts": 8, "moe_top_k": 2, "moe_every_n_layers": 2})",
     {{1, 3, 5}, 2, 8}},
    {"Motif",
     R"({"num_hidden_layers": 4, "num_experts": 384, "experts_top_k": 8,
         "n_dense_first_layers": 2, "interleave_moe_layer_step": 1})",
     {{2, 3}, 8, 384}},
    {"Pangu",
     R"({"num_hidden_layers": 5, "num_dense_layers": 3, "num_routed_experts": 256,
         "num_experts_per_tok": 8})",
     {{3, 4}, 8, 256}},
    {"Step35",
     R"({"num_hidden_layers": 5, "moe_num_experts": 288, "moe_top_k": 8,
         "moe_layers_enum": "3,4", "moe_every_n_layer": 1, "moe_layer_offset": 0})",
     {{3, 4}, 8, 288}},
    {"MistralParams",
     R"({"dim": 4096, "n_layers": 6, "moe": {"num_experts": 128, "num_experts_per_tok": 4,
         "first_k_dense_replace": 3, "route_every_n": 1, "num_expert_groups": 1,
         "expert_hidden_dim": 4096, "num_shared_experts": 1, "expert_parallel": 1}})",
     {range(3, 6), 4, 128}},
    {"MixtralParams",
     R"({"dim": 4096, "n_layers": 32, "moe": {"num_experts": 8, "num_experts_per_tok": 2}})",
     ModelShape::known("mixtral-8x7b")},
    {"PythonsNumbers",
     R"({"num_hidden_layers": 2, "num_experts": 8, "moe_top_k": 2,
         "time_step_limit": [0.0, Infinity], "low":-Infinity , "none": [NaN,
         Infinity], "text": "a \" [Infinity]"})",
     ModelShape::uniform(2, 2, 8)},
    {"AttentionKindsSayNothingOfExperts",
     R"({"num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 2,
         "layer_types": ["conv", "chunked_attention", "hybrid", "minimax_m3_sparse"],
         "layers_block_type": ["recurrent", "deepseek_sparse_attention", "mamba2", "kda"]})",
     ModelShape::uniform(4, 2, 16)},
    {"AttentionOfDraftLayersIsListedToo",  // Step-3.5: 45 layers and 3 that draft
     R"({"num_hidden_layers": 2, "moe_num_experts": 288, "moe_top_k": 8, "moe_layers_enum": "1",
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]})",
     {{1}, 8, 288}},
    {"Yuan",
     R"({"num_hidden_layers": 3, "use_moe": true, "moe_config": {"moe_num_experts": 32,
         "moe_top_k": 2, "norm_topk_prob": true, "router_type": "attn_router",
         "ffn_hidden_size": 8192, "moe_token_dispatcher_type": "alltoall"}})",
     ModelShape::uniform(3, 2, 32)},
    {"YuanExpertsLayerByLayer",
     R"({"num_hidden_layers": 3, "use_moe": true, "moe_config": {"moe_top_k": 2,
         "per_layer_experts_blocks": [48, 48, 48]}})",
     ModelShape::uniform(3, 2, 48)},
    {"SmallThinker",
     R"({"num_hidden_layers": 4, "moe_num_primary_experts": 64, "moe_ffn_hidden_size": 768,
         "moe_num_active_primary_experts": 6, "moe_enable_early_router": true,
         "moe_layer_layout": [1, 1, 1, 1], "moe_enable_secondary_experts": false,
         "moe_num_secondary_experts": 0, "moe_shared_primary_experts": 0,
         "sliding_window_layout": [0, 1, 1, 1], "rope_layout": [0, 1, 1, 1]})",
     ModelShape::uniform(4, 6, 64)},
    {"SwitchedOn",
     R"({"num_hidden_layers": 2, "num_experts": 16, "num_experts_per_tok": 2, "is_moe": true,
         "use_moe": 1})",
     ModelShape::uniform(2, 2, 16)},
    {"OuterNumbersThatSayTheSame",  // DeepSeek-OCR
     R"({"num_hidden_layers": 3, "n_routed_experts": 64, "num_experts_per_tok": 6,
         "first_k_dense_replace": 1,
         "language_config": {"num_hidden_layers": 3, "n_routed_experts": 64,
                             "num_experts_per_tok": 6, "first_k_dense_replace": 1}})",
     {{1, 2}, 6, 64}},
    {"OtherModelsBesideIt",
     R"({"text_config": {"num_hidden_layers": 2, "num_experts": 16, "num_experts_per_tok": 2},
         "talker_config": {"text_config": {"num_hidden_layers": 9, "decoder_sparse_step": 2}},
         "vision_config": {"layer_types": ["dense", "moe"], "moe_layer_freq": 2},
         "projector_config": {"projector_type": "mlp_gelu"}, "audio_config": {"depth": 3}})",
     ModelShape::uniform(2, 2, 16)},
    {"AttentionBesideItMayDiffer",
     R"({"layer_types": ["full_attention"], "text_config": {"num_hidden_layers": 2,
         "num_experts": 16, "num_experts_per_tok": 2, "layer_types": ["conv", "conv"]}})",
     ModelShape::uniform(2, 2, 16)},
    {"QuantizedByModule",  // MLX, Quark
     R"({"num_hidden_layers": 2, "num_experts": 16, "num_experts_per_tok": 2,
         "architectures": ["Qwen3MoeForCausalLM"],
         "quantization": {"model.layers.0.mlp.gate": {"group_size": 64, "bits": 8}},
         "quantization_config": {"modules_to_not_convert": ["experts", "moe"],
                                 "layer_quant_config": {"*mlp.gate": {"type": "fp8"}}}})",
     ModelShape::uniform(2, 2, 16)},
    {"SparseAttentionIsNoScheduleOfExperts",  // MiniMax M3
     R"({"num_hidden_layers": 4, "num_local_experts": 128, "num_experts_per_tok": 4,
         "moe_layer_freq": [0, 1, 1, 1], "layer_types": ["full_attention", "minimax_m3_sparse",
         "minimax_m3_sparse", "minimax_m3_sparse"], "sparse_attention_config":
         {"sparse_attention_freq": [0, 1, 1, 1], "sparse_disable_index_value": [0, 1, 1, 1],
          "sparse_score_type": "max"}})",
     {range(1, 4), 4, 128}},
    {"TokenTypesAreNoLayers",  // ERNIE
     R"({"num_hidden_layers": 2, "moe_num_experts": 16, "moe_k": 2,
         "moe_dense_experts_token_type_id": 3})",
     ModelShape::uniform(2, 2, 16)},
    {"NamesThatLookLikeSchedules",
     R"({"num_hidden_layers": 2, "num_experts": 8, "moe_top_k": 2, "expert_dtype": "fp4",
         "zero_expert_type": "identity", "zero_expert_num": 2, "use_mlp_layernorm": true,
         "moe_layer_step": null, "mtp_mlp_layer_types": ["dense"]})",
     ModelShape::uniform(2, 2, 10)},
};
INSTANTIATE_TEST_SUITE_P(All, ConfigFamily, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Config, DenseModelIsAnError) {  // H26
  for (const char* json : {
           R"({"num_hidden_layers": 32})",
           R"({"num_hidden_layers": 32, "num_experts": 0, "num_experts_per_tok": 2})",
           R"({"num_hidden_layers": 32, "num_experts": null, "n_routed_experts": null})",
           R"({"num_hidden_layers": 32, "text_config": {"num_hidden_layers": 32}})",
           R"({"num_hidden_layers": 32, "num_experts": 8, "top_k_experts": 2,
               "enable_moe_block": false})",
           R"({"num_hidden_layers": 32, "num_experts": 1, "moe_topk": 1})",
           R"({"num_hidden_layers": 32, "num_experts": 0, "num_selected_experts": 2})",
           R"({"num_hidden_layers": 2, "num_experts": [1, 1], "moe_topk": [1, 1]})",
           R"({"num_hidden_layers": 32, "num_experts": 8, "moe_topk": 2, "use_moe": false})",
           R"({"num_hidden_layers": 32, "num_experts": 8, "moe_topk": 2, "use_moe": 0})",
           R"({"num_hidden_layers": 32, "num_experts": 16384, "moe_topk": 64, "is_moe": false})",
           R"({"num_hidden_layers": 3, "use_moe": false, "moe_config": {"moe_num_experts": 32}})",
           R"({"num_hidden_layers": 3, "use_moe": false, "moe": {"expert_count": 32}})",
           R"({"moe_num_primary_experts": 0, "moe_num_secondary_experts": 0})",
           R"({"num_shared_experts": 2, "expert_hidden_dim": 64, "moe_count_experts": [1, 1]})",
           R"({"vision_config": {"num_experts": 8}, "text_config": {"num_hidden_layers": 2}})",
           R"({"quantization_config": {"num_experts": 8}, "mtp_num_experts": 8})",
           "{}",
       }) {
    SCOPED_TRACE(json);
    expect_throw<ArgumentError>([&] { ModelShape::from_config(json); },
                                {"dense", "num_experts", "text_config"});
  }
}

TEST(Config, ScheduleBesideTheModelMaySayTheSame) {
  EXPECT_EQ(ModelShape::from_config(
                R"({"first_k_dense_replace": 1, "text_config": {"num_hidden_layers": 2,
                    "num_experts": 8, "moe_topk": 2, "first_k_dense_replace": 1}})"),
            ModelShape({1}, 2, 8));
}

// Configurations of published models, by what their own code makes of them.
TEST(Config, MatchTheSharedExpectations) {
  const auto folder =
      std::filesystem::path(MOETAP_SOURCE_ROOT).parent_path() / "shared/data/configs";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "there is no " << folder;
  std::ifstream file(folder / "expected.json");
  const auto all = nlohmann::json::parse(file);
  EXPECT_GT(all.size(), 0u);
  for (const auto& [name, expected] : all.items()) {
    SCOPED_TRACE(name);
    const auto path = folder / (name + ".json");
    if (expected.is_string()) {
      EXPECT_THROW(ModelShape::from_config_file(path), ArgumentError);
      continue;
    }
    const ModelShape shape = ModelShape::from_config_file(path);
    EXPECT_EQ(shape.moe_layers(), expected["layers"].get<std::vector<int>>());
    EXPECT_EQ(shape.top_k(), expected["top_k"]);
    EXPECT_EQ(shape.num_experts(), expected["experts"]);
  }
}

class ConfigFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  void write(std::string_view text) { std::ofstream(path_, std::ios::binary) << text; }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / ("config." + std::to_string(getpid()) + ".json");
};

TEST_F(ConfigFile, IsReadWhole) {
  const std::string blanks(10'000, ' ');  // longer than any chunk it is read in
  write(blanks + R"({"num_hidden_layers": 2, "num_experts": 8, "moe_top_k": 2})" + blanks);
  EXPECT_EQ(ModelShape::from_config_file(path_), ModelShape::uniform(2, 2, 8));
}

TEST_F(ConfigFile, ErrorNamesTheFile) {
  write("{}");
  expect_throw<ArgumentError>([&] { ModelShape::from_config_file(path_); },
                              {path_.string(), "dense"});
}

TEST_F(ConfigFile, ThatCannotBeReadIsASystemError) {
  expect_throw<SystemError>([&] { ModelShape::from_config_file(path_); },
                            {path_.string(), "No such file"});
  expect_throw<SystemError>([&] { ModelShape::from_config_file(path_.parent_path()); },
                            {"Is a directory"});
}

}  // namespace
}  // namespace moetap
