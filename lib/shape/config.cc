// Model shapes from configuration files: Hugging Face's config.json, Mistral's params.json.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <fstream>
#include <vector>

#include "lib/internal/json_text.h"
#include "lib/internal/text.h"
#include "lib/shape/config_layers.h"
#include "lib/shape/config_values.h"

namespace moetap {
namespace {

using Json = nlohmann::json;
using detail::ConfigValues;

// The language model of a configuration, and what it is in: multimodal ones have it one or two
// levels down.
struct LanguageModel {
  const Json* json;
  std::vector<const Json*> around;  // outermost first
};

LanguageModel language_model(const Json& root) {
  if (!root.is_object()) throw ArgumentError("the configuration is not a JSON object");
  for (const char* path :
       {"/text_config", "/thinker_config/text_config", "/llm_config", "/language_config", ""}) {
    Json::json_pointer pointer(path);
    if (!root.contains(pointer) || !root[pointer].is_object()) continue;
    if (ConfigValues(root[pointer]).num_experts() == 0) continue;
    LanguageModel found{&root[pointer], {}};
    while (!pointer.empty()) {
      pointer.pop_back();
      found.around.insert(found.around.begin(), &root[pointer]);
    }
    return found;
  }
  throw ArgumentError(fmt::format(
      "a dense model has no routes: none of {} is above 1, at the top or under \"text_config\"",
      fmt::join(detail::expert_names(), ", ")));
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SystemError(errno, "cannot open " + path.string());
  std::string text;
  char chunk[4096];
  while (file.read(chunk, sizeof chunk) || file.gcount() > 0) {
    text.append(chunk, static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) throw SystemError(errno, "cannot read " + path.string());
  return text;
}

}  // namespace

ModelShape ModelShape::from_config(std::string_view json) {
  const Json root = detail::parse_json(detail::quote_non_numbers(json), "the configuration");
  const LanguageModel model = language_model(root);
  const ConfigValues config(*model.json);
  const int num_layers = config.num_layers();
  detail::refuse_unknown_schedules(config, model.around);
  return ModelShape(detail::moe_layers_of(config), config.top_k(),
                    static_cast<int>(config.num_experts()), num_layers);
}

ModelShape ModelShape::from_config_file(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return from_config(text);
  } catch (const ArgumentError& error) {
    throw ArgumentError(path.string() + ": " + error.what());
  }
}

}  // namespace moetap
