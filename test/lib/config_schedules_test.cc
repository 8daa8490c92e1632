// Which keys of a configuration say which layers have experts (H34), and whether they agree.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using nlohmann::json;
using test::expect_throw;

json model(int num_layers) {
  return {{"num_hidden_layers", num_layers}, {"num_experts", 16}, {"num_experts_per_tok", 2}};
}

// What one key says of a model of six layers. Keys of one family are meant to be combined.
struct Said {
  std::string key;
  json value;
  std::vector<int> layers;
  std::string family = {};
};

const std::vector<Said>& all_said() {
  static const std::vector<int> odd{1, 3, 5};
  static const std::vector<int> from2{2, 3, 4, 5};
  static const std::vector<Said> all{
      {"first_k_dense_replace", 2, from2, "DeepSeek"},
      {"moe_layer_freq", 2, {0, 2, 4}, "DeepSeek"},
      {"moe_layer_freq", {0, 0, 1, 1, 1, 1}, from2},
      {"moe_layer_freq", {0, 1, 0, 1, 0, 1}, odd},
      {"route_every_n", 3, {0, 3}},
      {"decoder_sparse_step", 2, odd, "Qwen"},
      {"mlp_only_layers", {0, 1}, from2, "Qwen"},
      {"moe_layer_start_index", 2, from2, "ERNIE"},
      {"moe_layer_end_index", 3, {0, 1, 2, 3}, "ERNIE"},
      {"moe_layer_interval", 2, odd, "ERNIE"},
      {"interleave_moe_layer_step", 2, odd, "Llama4"},
      {"n_dense_first_layers", 2, from2, "Llama4"},
      {"num_dense_layers", 1, {1, 2, 3, 4, 5}},
      {"dense_mlp_idx", 2, from2},
      {"moe_layer_num_skipped", 3, {3, 4, 5}},
      {"leading_dense_block_count", 2, from2},
      {"moe_layer_frequency", 3, {2, 5}},
      {"moe_every_n_layers", 2, odd},
      {"expert_layer_period", 2, {0, 2, 4}},
      {"moe_layers_enum", "2,3,4,5", from2},
      {"moe_layers", {1, 3, 5}, odd},
      {"moe_layers", {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}},
      {"mlp_layer_types", {"dense", "dense", "sparse", "sparse", "sparse", "sparse"}, from2},
      {"is_moe_layer", {false, true, false, true, false, true}, odd},
      {"is_moe_layer", {1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5}},
      {"layers_block_type", {"mamba", "moe", "mamba", "moe", "attention", "moe"}, odd},
      {"layer_types", {"mlp", "attention", "moe", "moe", "moe", "moe"}, from2},
      {"hybrid_override_pattern", "MEME*E", odd},
      {"moe_layer_layout", {1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5}},
  };
  return all;
}

// Such as mlp_layer_types, which wins over first_k_dense_replace.
bool are_combined(const Said& a, const Said& b) {
  const auto is_pair = [&](const Said& x, const Said& y) {
    return x.key == "first_k_dense_replace" && y.key == "mlp_layer_types";
  };
  return a.key == b.key || (!a.family.empty() && a.family == b.family) || is_pair(a, b) ||
         is_pair(b, a) || (a.key == "first_k_dense_replace" && b.key == "route_every_n");
}

TEST(ConfigSchedules, H34EachIsRead) {
  for (const Said& said : all_said()) {
    json config = model(6);
    config[said.key] = said.value;
    EXPECT_EQ(ModelShape::from_config(config.dump()), ModelShape(said.layers, 2, 16, 6))
        << config.dump();
  }
}

TEST(ConfigSchedules, H34OfTwoThatDifferBothAreNamedAndTwoThatAgreeAreRead) {
  int differ = 0;
  int agree = 0;
  for (const Said& a : all_said()) {
    for (const Said& b : all_said()) {
      if (&a >= &b || are_combined(a, b)) continue;
      json config = model(6);
      config[a.key] = a.value;
      config[b.key] = b.value;
      const std::string text = config.dump();
      SCOPED_TRACE(text);
      if (a.layers == b.layers) {
        ++agree;
        EXPECT_EQ(ModelShape::from_config(text), ModelShape(a.layers, 2, 16, 6));
      } else {
        ++differ;
        expect_throw<ArgumentError>([&] { ModelShape::from_config(text); },
                                    {"\"" + a.key + "\"", "\"" + b.key + "\"", ", but "});
      }
    }
  }
  EXPECT_GT(agree, 50);
  EXPECT_GT(differ, 200);
}

TEST(ConfigSchedules, H34AStepOfOneIsNoOtherListThanAllLayers) {
  for (const bool all : {true, false}) {
    json config = model(3);
    config["interleave_moe_layer_step"] = 1;
    config["moe_layers"] = all ? json{0, 1, 2} : json{0, 2};
    if (all) {
      EXPECT_EQ(ModelShape::from_config(config.dump()), ModelShape::uniform(3, 2, 16));
    } else {
      expect_throw<ArgumentError>(
          [&] { ModelShape::from_config(config.dump()); },
          {"\"moe_layers\" is [0,2]", "\"interleave_moe_layer_step\" is 1", "layer 1 "});
    }
  }
}

TEST(ConfigSchedules, H34ALayerThatIsListedTwiceIsRefused) {
  for (const json& list : {json{1, 1}, json{2, 0, 2}}) {
    for (const char* key : {"moe_layers", "mlp_only_layers", "moe_layers_enum"}) {
      json config = model(4);
      config[key] = list;
      if (std::string_view(key) == "moe_layers_enum") {
        std::string ids = list.dump();
        config[key] = ids.substr(1, ids.size() - 2);
      }
      expect_throw<ArgumentError>([&] { ModelShape::from_config(config.dump()); },
                                  {key, "layer " + list.back().dump() + " twice"});
    }
  }
}

TEST(ConfigSchedules, H34KeysOfNoKnownModelAreRefusedByName) {
  for (const char* key : {"router_layers",
                          "routed_layers",
                          "routing_layer_ids",
                          "router_every",
                          "router_idx",
                          "gate_layers",
                          "gating_layer_indices",
                          "gate_every",
                          "sparse_layers",
                          "sparse_layer_freq",
                          "sparse_period",
                          "num_sparse_layers",
                          "ffn_layers",
                          "ffn_layout",
                          "feed_forward_layer_kind",
                          "dense_prefix",
                          "prefix_dense",
                          "dense_suffix",
                          "dense_until",
                          "last_dense",
                          "moe_last",
                          "moe_indices",
                          "moe_ids",
                          "dense_layer_ids",
                          "every_nth_expert",
                          "expert_stride",
                          "moe_offset",
                          "dense_replace",
                          "moe_alternate",
                          "interleaved_moe",
                          "moe_interleave",
                          "mlp_prefix_length",
                          "num_layers_before_moe",
                          "num_moe_layers",
                          "moe_skip",
                          "moe_schedule",
                          "moe_placement",
                          "moe_mode",
                          "moe_location",
                          "moe_ratio",
                          "moe_modulo",
                          "expert_modulo",
                          "sparse_step",
                          "sparsity_step",
                          "dense_blocks",
                          "num_leading_dense",
                          "switch_layers",
                          "layers_pattern",
                          "layer_mask",
                          "moe_at",
                          "moe_map",
                          "expert_mask",
                          "moe_positions",
                          "block_pattern",
                          "layer_schedule",
                          "ffn_pattern",
                          "sparse_mask",
                          "moe_types",
                          "mlp_types",
                          "deepseek2.moe_freq",
                          "block_placement"}) {
    for (const json& value : {json(2), json{0, 1}, json("0,1"), json(true)}) {
      json config = model(8);
      config[key] = value;
      expect_throw<ArgumentError>([&] { ModelShape::from_config(config.dump()); },
                                  {"\"" + std::string(key) + "\"", "not understood"});
    }
  }
}

// One kind for all layers, unless the string says that layers differ.
TEST(ConfigSchedules, H34AStringUnderAKeyOfATypeNamesAKindOrIsRefused) {
  constexpr int kLayers = 8;
  for (const char* key : {"mlp_type", "expert_type", "moe_router_type", "moe_type", "dense_type"}) {
    const auto with = [&](const json& value) {
      json config = model(kLayers);
      config[key] = value;
      return config.dump();
    };
    for (const char* kind : {"swiglu", "mlp", "top_k", "TopK-Gating", "gelu", "moe", ""}) {
      EXPECT_EQ(ModelShape::from_config(with(kind)), ModelShape::uniform(kLayers, 2, 16))
          << with(kind);
    }
    for (const json& other :
         {json("dense"), json("Sparse"), json("every_other"), json("alternating"), json("hybrid"),
          json("interleaved"), json("mixed"), json("first_dense"), json("DDSSSSSS"),
          json("mmmmmmme"), json("0,1"), json("2"), json("layer2"), json("odd"), json(1),
          json(true), json{"swiglu"}, json{{"swiglu", 2}}}) {
      expect_throw<ArgumentError>([&] { ModelShape::from_config(with(other)); },
                                  {"\"" + std::string(key), "not understood"});
    }
  }
  json config = model(kLayers);
  config["mlp_layer_type"] = "swiglu";
  expect_throw<ArgumentError>([&] { ModelShape::from_config(config.dump()); }, {"mlp_layer_type"});
}

// Keys of published models, all of them beside what is read.
TEST(ConfigSchedules, KeysThatSayNothingOfLayersAreTaken) {
  json config = model(8);
  for (const char* key : {"add_router_probs",
                          "batch_prioritized_routing",
                          "dense_act_fn",
                          "dense_intermediate_size",
                          "expert_capacity",
                          "expert_ffn_hidden_size",
                          "expert_selection_fn",
                          "ffn_act_fn",
                          "ffn_dim",
                          "ffn_hidden_size",
                          "gated_norm_rank",
                          "gating",
                          "intermediate_size_mlp",
                          "kda_safe_gate",
                          "mlp_bias",
                          "mlp_hidden_act",
                          "mlp_ratio",
                          "moe_gate_up_proj",
                          "moe_intermediate_size",
                          "moe_jitter_eps",
                          "moe_latent_size",
                          "moe_loss_weight",
                          "moe_normalize_expert_weights",
                          "moe_num_shared_experts",
                          "moe_routed_scaling_factor",
                          "moe_router_dtype",
                          "moe_router_logit_softcapping",
                          "moe_token_dropout",
                          "n_shared_experts",
                          "norm_topk_prob",
                          "output_gate_type",
                          "output_router_logits",
                          "prefix_dense_intermediate_size",
                          "prefix_dense_sliding_window_pattern",
                          "prefix",
                          "rms_norm_eps_moe_gate",
                          "route_scale",
                          "routed_scaling_factor",
                          "router_aux_loss_coef",
                          "router_bias",
                          "router_ignore_padding_tokens",
                          "router_jitter_noise",
                          "router_type",
                          "router_z_loss_coef",
                          "shared_expert_intermediate_size",
                          "use_expert_bias",
                          "attn_output_gate",
                          "gated_attention_layers",
                          "sparse_attention_layers",
                          "index_topk_freq",
                          "sliding_window_pattern",
                          "hybrid_layer_pattern",
                          "no_rope_layer_mask",
                          "swiglu_limit",
                          "moe_model_parallel_size",
                          "model.layers.0.mlp.experts",
                          "attn_layer_offset",
                          "hidden_act"}) {
    config[key] = 1;
    EXPECT_EQ(ModelShape::from_config(config.dump()), ModelShape::uniform(8, 2, 16)) << key;
  }
}

}  // namespace
}  // namespace moetap
