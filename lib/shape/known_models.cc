// Published models, so that benchmarks and demos need no configuration file. The numbers are from
// the models' own config.json.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>

#include "lib/internal/text.h"

namespace moetap {
namespace {

struct KnownModel {
  std::string_view name;
  int num_hidden_layers;
  int first_moe_layer;
  int moe_every;
  int top_k;
  int num_experts;
  std::string_view pattern = {};  // of a hybrid model, one letter per layer: E is a MoE layer

  std::vector<int> moe_layers() const {
    std::vector<int> layers;
    for (int i = first_moe_layer; i < num_hidden_layers; i += moe_every) {
      if (pattern.empty() || pattern[static_cast<std::size_t>(i)] == 'E') layers.push_back(i);
    }
    return layers;
  }
};

constexpr KnownModel kModels[] = {
    {"deepseek-v3", 61, 3, 1, 8, 256},
    {"gpt-oss-120b", 36, 0, 1, 4, 128},
    {"kimi-k2", 61, 1, 1, 8, 384},
    {"llama-4-maverick", 48, 1, 2, 1, 128},
    {"mixtral-8x7b", 32, 0, 1, 2, 8},
    {"nemotron-3-super", 88, 0, 1, 22, 512,
     "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"},
    {"olmoe-1b-7b", 16, 0, 1, 8, 64},
    {"powermoe-3b", 32, 0, 1, 8, 40},
    {"qwen3-235b-a22b", 94, 0, 1, 8, 128},
    {"qwen3-30b-a3b", 48, 0, 1, 8, 128},
};

}  // namespace

ModelShape ModelShape::known(std::string_view name) {
  std::vector<std::string_view> names;
  for (const KnownModel& model : kModels) {
    if (model.name == name) {
      return ModelShape(model.moe_layers(), model.top_k, model.num_experts,
                        model.num_hidden_layers);
    }
    names.push_back(model.name);
  }
  throw ArgumentError(
      fmt::format("no model is known as \"{}\"; known are {}. Of others, give config.json to "
                  "ModelShape::from_config_file()",
                  name, detail::join(names)));
}

std::vector<std::string> ModelShape::known_names() {
  std::vector<std::string> names;
  for (const KnownModel& model : kModels) names.emplace_back(model.name);
  return names;
}

}  // namespace moetap
