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
  for (const char* key :
       {"router_layers", "routed_layers", "routing_layer_ids", "router_every", "router_idx",
        "gate_layers", "gating_layer_indices", "gate_every", "sparse_layers", "sparse_layer_freq",
        "sparse_period", "num_sparse_layers", "ffn_layers", "ffn_layout", "feed_forward_layer_kind",
        "dense_prefix", "prefix_dense", "dense_suffix", "dense_until", "last_dense", "moe_last",
        "moe_indices", "moe_ids", "dense_layer_ids", "every_nth_expert", "expert_stride",
        "moe_offset", "dense_replace", "moe_alternate", "interleaved_moe", "moe_interleave",
        "mlp_prefix_length", "num_layers_before_moe", "num_moe_layers", "moe_skip", "moe_schedule",
        "moe_placement", "moe_mode", "moe_location", "moe_ratio", "moe_modulo", "expert_modulo",
        "sparse_step", "sparsity_step", "dense_blocks", "num_leading_dense", "switch_layers",
        "layers_pattern", "layer_mask", "moe_at", "moe_map", "expert_mask", "moe_positions",
        "block_pattern", "layer_schedule", "ffn_pattern", "sparse_mask", "moe_types", "mlp_types",
        "deepseek2.moe_freq", "model.moe_from", "moe_layers.n", "moe_layers.", "block_placement",
        "skip_layers", "block_skip",
        // Whatever word says it.
        "moe_begin", "moe_after", "moe_from", "moe_to", "moe_end", "moe_rate", "moe_phase",
        "moe_modulus", "moe_depth", "moe_n", "moe_count", "moe_half", "moe_only_odd", "hybrid_moe",
        "mlp_from", "experts_from", "router_from", "dense_front", "dense_num", "dense_depth",
        "dense_end",
        // Other numbers of experts and of picks.
        "num_moe_experts", "experts_total", "router_topk",
        // A size or a loss of some layers, an attention that has experts.
        "moe_size_layer", "moe_size_idx", "moe_size_indices", "moe_size_ids", "moe_loss_freq",
        "moe_loss_every", "moe_loss_period", "moe_shared_prefix", "moe_shared_suffix",
        "moe_shared_layout", "moe_scale_nth", "moe_scale_interval", "moe_scale_step",
        "moe_group_first", "moe_group_last", "moe_group_start", "moe_shared_until",
        "moe_shared_offset", "moe_bias_replace", "moe_bias_alternates", "moe_bias_interleave",
        "dense_size_pattern", "moe_every_n_attention_layers", "moe_after_attention"}) {
    for (const json& value : {json(2), json{0, 1}, json("0,1"), json(true), json("odd"),
                              json("some"), json(0.5), json::array()}) {
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
    for (const json& other : {json("dense"),
                              json("Sparse"),
                              json("every_other"),
                              json("alternating"),
                              json("hybrid"),
                              json("interleaved"),
                              json("mixed"),
                              json("first_dense"),
                              json("DDSSSSSS"),
                              json("mmmmmmme"),
                              json("0,1"),
                              json("2"),
                              json("layer2"),
                              json("odd"),
                              json("even"),
                              json("layer_wise"),
                              json("first_only"),
                              json("last"),
                              json(1),
                              json(true),
                              json{"swiglu"},
                              json{{"swiglu", 2}}}) {
      SCOPED_TRACE(other.dump());
      expect_throw<ArgumentError>([&] { ModelShape::from_config(with(other)); },
                                  {"\"" + std::string(key), "not understood"});
    }
  }
  json config = model(kLayers);
  config["mlp_layer_type"] = "swiglu";
  expect_throw<ArgumentError>([&] { ModelShape::from_config(config.dump()); }, {"mlp_layer_type"});
}

// An object's name belongs to the names of its members.
TEST(ConfigSchedules, H34AnObjectIsReadLikeItsMembers) {
  const auto with = [](const json& value) {
    json config = model(8);
    config.update(value);
    return config.dump();
  };
  const struct {
    json config;
    std::string_view name;
  } refused[] = {
      {{{"moe_args", {{"n", 2}}}}, "\"moe_args.n\" is 2"},
      {{{"moe_args", {{"hidden_size", 64}, {"from", 3}}}}, "\"moe_args.from\" is 3"},
      {{{"arch", {{"moe_args", {{"half", true}}}}}}, "\"arch.moe_args.half\" is true"},
      {{{"arch", {{"top_k_list", {1, 2, 2, 2, 2, 2, 2, 2}}}}}, "\"arch.top_k_list\""},
      {{{"ff", {{"every", 2}}}}, "\"ff.every\" is 2"},
      {{{"moe_in", {{"1", {{"on", true}}}}}}, "\"moe_in.1.on\""},
      {{{"parts", {{{"moe", false}, {"n", 2}}, {{"moe", true}, {"n", 6}}}}},
       "\"parts.0.moe\" is false"},
      {{{"moe_parts", {1, {{"n", 6}}}}}, "\"moe_parts"},
      // Numbers of experts and picks that are read elsewhere.
      {{{"arch", {{"num_experts", 32}}}}, "\"arch.num_experts\" is 32"},
      {{{"arch", {{"n_routed_experts", 32}}}}, "\"arch.n_routed_experts\" is 32"},
      {{{"arch", {{"moe_topk", 4}}}}, "\"arch.moe_topk\" is 4"},
      {{{"arch", {{"moe_topk", 16}}}}, "\"arch.moe_topk\" is 16"},
      {{{"arch", {{"num_experts", {16, 1, 16, 1, 16, 1, 16, 1}}}}}, "\"arch.num_experts\""},
      {{{"parts", {{{"num_experts", 16}}, {{"num_experts", 8}}}}}, "\"parts.1.num_experts\" is 8"},
      {{{"arch", {{"zero_expert_num", 4}}}}, "\"arch.zero_expert_num\" is 4"},
  };
  for (const auto& [config, name] : refused) {
    const std::string text = with(config);
    SCOPED_TRACE(text);
    expect_throw<ArgumentError>([&] { ModelShape::from_config(text); }, {name});
  }
  for (const json& taken :
       {json{{"moe_args", json::object()}}, json{{"moe_args", {{"hidden_size", 64}}}},
        json{{"arch", {{"num_experts", 16}, {"n_routed_experts", 16}}}},
        json{{"arch", {{"moe_topk", 2}}}}, json{{"label2id", {{"dense", 0}, {"moe", 1}}}}}) {
    EXPECT_EQ(ModelShape::from_config(with(taken)), ModelShape::uniform(8, 2, 16)) << taken;
  }
}

// With a value for each layer, whatever else the name says.
TEST(ConfigSchedules, H34AListThatTellsLayersApartIsRefused) {
  constexpr int kLayers = 8;
  const std::vector<json> lists{
      {16, 1, 16, 1, 16, 1, 16, 1},
      {2, 2, 2, 2, 2, 2, 2, 4},
      {2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.5},
      {false, true, true, true, true, true, true, true},
      {"a", "b", "a", "b", "a", "b", "a", "b"},
      {2, 2, 2, 2, 2, 2, 2, 2, 4},  // and a draft model's layer
  };
  const auto with = [&](const char* key, const json& value) {
    json config = model(kLayers);
    config[key] = value;
    return config.dump();
  };
  for (const char* key :
       {"num_experts_list",   "moe_topk_list",    "num_moe_experts", "experts_counts",
        "experts_per_layer",  "experts_in_layer", "router_kinds",    "top_k_list",
        "topk_list",          "num_per_tok",      "ffn_kinds",       "ff_kinds",
        "feed_forward_kinds", "mlp_kinds",        "dense_kinds",     "sparse_kinds",
        "switch_kinds",       "gate_kinds",       "gating_kinds",    "moe_intermediate_size",
        "num_shared_experts", "expert_bias"}) {
    for (const json& list : lists) {
      const std::string text = with(key, list);
      SCOPED_TRACE(text);
      expect_throw<ArgumentError>([&] { ModelShape::from_config(text); },
                                  {"\"" + std::string(key) + "\"", "not understood"});
    }
  }
  for (const char* key : {"ffn_at", "switch_at", "gate_at", "moe_capacity"}) {
    for (const json& ids : {json{1, 3}, json{7}}) {
      expect_throw<ArgumentError>([&] { ModelShape::from_config(with(key, ids)); },
                                  {"\"" + std::string(key) + "\"", "not understood"});
    }
  }
  // One value for all layers, another number of values, and lists about something else.
  EXPECT_EQ(ModelShape::from_config(with("target_modules", {"mlp", "dense", "moe_gate"})),
            ModelShape::uniform(kLayers, 2, 16));
  json one = model(1);
  one["architectures"] = {"Qwen3MoeForCausalLM"};
  EXPECT_EQ(ModelShape::from_config(one.dump()), ModelShape::uniform(1, 2, 16));
  const json same(kLayers, 2);
  for (const char* key : {"moe_intermediate_size", "num_shared_experts", "ffn_kinds", "topk_group"})
    EXPECT_EQ(ModelShape::from_config(with(key, same)), ModelShape::uniform(kLayers, 2, 16)) << key;
  for (const json& other : {json{1536, 512}, json{0.9, 0.95}, json{3, 1}, json{3, 3}, json{-1, 1},
                            json{7, 8}, json::array()})
    EXPECT_EQ(ModelShape::from_config(with("moe_capacity", other)),
              ModelShape::uniform(kLayers, 2, 16))
        << other;
  for (const char* key : {"dense_attn_kinds", "gated_attention_kinds", "dense_rope_kinds",
                          "top_k_rotary", "dense_window_sizes", "topk_sliding", "sparse_kv_kinds",
                          "index_topk_kinds", "sparse_indexer_kinds", "kinds", "compress_ratios"}) {
    for (const json& list : lists) {
      EXPECT_EQ(ModelShape::from_config(with(key, list)), ModelShape::uniform(kLayers, 2, 16))
          << key << list;
    }
  }
}

TEST(ConfigSchedules, H34AStringWithALetterForEachLayerIsRefused) {
  const auto with = [](const char* key, std::string_view value) {
    json config = model(static_cast<int>(value.size()));
    config[key] = value;
    return config.dump();
  };
  for (const char* key : {"ff_types", "kinds", "mixers"}) {
    for (const std::string_view pattern :
         {"dmdmdmdm", "DMMM", "01010101", "EDEDEDED", "aabbccdd", "ME*E", "E-", "mmmmmmme"}) {
      const std::string text = with(key, pattern);
      SCOPED_TRACE(text);
      expect_throw<ArgumentError>([&] { ModelShape::from_config(text); },
                                  {"\"" + std::string(key) + "\"", "not understood"});
    }
  }
  for (const std::string_view other :
       {"silu", "gelu_new", "abcabd", "aaaaaaaa", "4.44.4", "3f2a9c0d1e3f2a9c0d1e3f2a9c0d1e"}) {
    const std::string text = with("kinds", other);
    EXPECT_EQ(ModelShape::from_config(text),
              ModelShape::uniform(static_cast<int>(other.size()), 2, 16))
        << text;
  }
  for (const char* key : {"window_kinds", "attn_kinds", "index_topk_pattern"}) {
    EXPECT_EQ(ModelShape::from_config(with(key, "SSSLSSSL")), ModelShape::uniform(8, 2, 16)) << key;
  }
}

// Keys of published models, all of them beside what is read.
TEST(ConfigSchedules, H34SomeSayNothingOfLayersOnlyInOneForm) {
  const auto with = [](const char* key, const json& value) {
    json config = model(8);
    config["hidden_size"] = 4096;
    config[key] = value;
    return config.dump();
  };
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"dense_list", {4096, 0}},
                                                 {"uniform_expert_assignment", false},
                                                 {"moe_impl", "eager"},
                                                 {"router_type", "softmax"},
                                                 {"moe_dynamic_exp_p", 1},
                                                 {"expert_bias_from_pretrained", true},
                                                 {"moe_weights_initialized_from", "x/y"},
                                                 {"expert_bias_to", 1},
                                                 {"router_prob_to_fp32", 1},
                                                 {"mlp_norm_type", "layer_norm"},
                                                 {"description", "not dense but moe"}}) {
    EXPECT_EQ(ModelShape::from_config(with(key, value)), ModelShape::uniform(8, 2, 16)) << key;
  }
  const json per_layer{0, 0, 1, 1, 1, 1, 1, 1};
  const json nested(8, json{"attn", "moe"});
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"dense_list", {0, 1}},
                                                 {"dense_list", json::array({0})},
                                                 {"dense_list", json::array({9})},
                                                 {"dense_list", {0, 0}},
                                                 {"dense_list", {4096, 0.0}},
                                                 {"dense_list", {4096, 0, 0, 0, 0, 0, 0, 0}},
                                                 {"dense_list", {"dense", "moe"}},
                                                 {"dense_list", 3},
                                                 {"uniform_expert_assignment", {1, 3}},
                                                 {"use_mixed_mlp_moe", per_layer},
                                                 {"mlp_ratio", per_layer},
                                                 {"router_type", "from_two"},
                                                 {"router_type", "after_two"},
                                                 {"moe_impl", "from_3"},
                                                 {"moe_impl", "from_three"},
                                                 {"moe_impl", "second_half"},
                                                 {"moe_impl", "d-m-d-m-"},
                                                 {"moe_impl", {{"0", "dense"}, {"1", "moe"}}},
                                                 {"moe_gate_type", "every 2"},
                                                 {"moe_group_from", 2},
                                                 {"moe_group_after", 2},
                                                 {"moe_group_stride", 2},
                                                 {"moe_scale_to", {2, 4}},
                                                 {"layer_spec", "3xdense+5xmoe"},
                                                 {"layer_spec", "dense:3 moe:5"},
                                                 {"layer_arch", "d,m,d,m,d,m,d,m"},
                                                 {"layer_config", {{"0", "dense"}, {"1", "moe"}}},
                                                 {"moe_dynamic_exp_p", 0.5},
                                                 {"moeGroupFrom", 2},
                                                 {"MoELayerFreq", 2},
                                                 {"numMoELayers", 2},
                                                 {"MLPLayers", {0, 1}},
                                                 {"moe_gate_after", 3.0},
                                                 {"moe_gate_after", "3"},
                                                 {"moe_gate_at", "1,3"},
                                                 {"moe-group-from", 2},
                                                 {"moe group from", 2},
                                                 {"ffn_from", 2},
                                                 {"pattern", "moe,dense"},
                                                 {"block_types", {"moe,dense", "moe,mlp"}},
                                                 {"kinds", nested},
                                                 {"num_initial_dense", 2},
                                                 {"num_hidden_dense", 2},
                                                 {"moe_ff_from", 2}}) {
    const std::string text = with(key, value);
    SCOPED_TRACE(text);
    expect_throw<ArgumentError>([&] { ModelShape::from_config(text); },
                                {"\"" + std::string(key), "not understood"});
  }
}

TEST(ConfigSchedules, KeysThatSayNothingOfLayersAreTaken) {
  json config = model(8);
  for (const char* key :
       {"add_router_probs", "batch_prioritized_routing", "dense_act_fn", "dense_intermediate_size",
        "expert_capacity", "expert_ffn_hidden_size", "expert_selection_fn", "ffn_act_fn", "ffn_dim",
        "ffn_hidden_size", "gated_norm_rank", "gating", "intermediate_size_mlp", "kda_safe_gate",
        "mlp_bias", "mlp_hidden_act", "mlp_ratio", "moe_gate_up_proj", "moe_intermediate_size",
        "moe_jitter_eps", "moe_latent_size", "moe_loss_weight", "moe_normalize_expert_weights",
        "moe_num_shared_experts", "moe_routed_scaling_factor", "moe_router_dtype",
        "moe_router_logit_softcapping", "moe_token_dropout", "n_shared_experts", "norm_topk_prob",
        "output_gate_type", "output_router_logits", "prefix_dense_intermediate_size",
        "prefix_dense_sliding_window_pattern", "prefix", "rms_norm_eps_moe_gate", "route_scale",
        "routed_scaling_factor", "router_aux_loss_coef", "router_bias",
        "router_ignore_padding_tokens", "router_jitter_noise", "router_type", "router_z_loss_coef",
        "shared_expert_intermediate_size", "use_expert_bias", "attn_output_gate",
        "gated_attention_layers", "sparse_attention_layers", "index_topk_freq",
        "sliding_window_pattern", "hybrid_layer_pattern", "no_rope_layer_mask", "swiglu_limit",
        "moe_model_parallel_size", "model.layers.0.mlp.experts", "*.mlp.experts",
        "attn_layer_offset", "hidden_act", "dense_attention_every_n_layers", "dense_attn_first",
        "dense_window_layers", "sparse_rope_layers", "sparse_rotary_layers",
        "sliding_layer_pattern", "shared_kv_layer_mask", "index_topk_pattern",
        "sparse_indexer_layers", "label2id",
        // Each for a word that says what else a name is about.
        "experts_width", "use_double_wide_mlp", "expert_lora_rank", "zaya_mlp_expansion",
        "mlp_multipliers", "mlp_alpha_factor", "moe_orthogonal_loss_lambda",
        "router_scaling_factor", "moe_eval_capacity_factor", "moe_aux_loss_coeff",
        "moe_apply_router_weight_on_input", "moe_router_enable_expert_bias",
        "expert_initializer_range", "moe_norm_min", "layernorm_mlp_alpha", "use_mlp_layer_norm",
        "moe_renormalize", "mlp_clamp", "moe_router_activation", "moe_router_activation_func",
        "moe_topk_method", "moe_router_pre_softmax", "mlp_up_softcap", "moe_router_use_sigmoid",
        "moe_scoring", "moe_temperature", "moe_use_aux_free", "moe_load_balancing",
        "moe_drop_tokens", "router_noise", "enable_moe_fp32_combine", "moe_fp8", "moe_quantized",
        "moe_bits", "expert_parallel", "moe_grouped_gemm", "moe_fuse", "moe_permute_fusion",
        "moe_kernel", "moe_backend", "experts_implementation", "moe_shared_expert_overlap",
        "moe_dispatcher", "moe_recompute", "shared_moe_mode", "moe_group_experts",
        "moe_use_hard_gate", "mlp_gating", "residual_moe", "use_mixed_mlp_moe", "moe_aux_loss_freq",
        "moe_dense_experts_token_type_id", "moe_enable_early_router", "moe_layer_feed_fake_token",
        "moe_layer_recompute", "moe_num_secondary_experts", "router_init_std", "moe_eps", "moe_act",
        "router_lr", "moe_tp", "moe_compile"}) {
    config[key] = 1;
    EXPECT_EQ(ModelShape::from_config(config.dump()), ModelShape::uniform(8, 2, 16)) << key;
  }
}

}  // namespace
}  // namespace moetap
