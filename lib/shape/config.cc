// Model shapes from configuration files: Hugging Face's config.json, Mistral's params.json.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/internal/json_text.h"
#include "lib/internal/text.h"
#include "lib/shape/config_experts.h"
#include "lib/shape/config_layers.h"
#include "lib/shape/config_values.h"

namespace moetap {
namespace {

using Json = nlohmann::json;
using detail::ConfigValues;

// Where the language model is described: one or two levels down in multimodal models.
constexpr const char* kPaths[] = {"/text_config",     "/thinker_config/text_config",
                                  "/thinker_config",  "/llm_config",
                                  "/language_config", ""};

// "text_config.", for the names of its keys.
std::string prefix_of(std::string path) {
  if (path.empty()) return path;
  std::ranges::replace(path, '/', '.');
  return path.substr(1) + ".";
}

// The parts of kPaths that exist, by their prefix.
std::vector<std::pair<std::string, const Json*>> descriptions(const Json& root) {
  std::vector<std::pair<std::string, const Json*>> found;
  for (const char* path : kPaths) {
    const Json::json_pointer pointer(path);
    if (!root.contains(pointer) || !root[pointer].is_object()) continue;
    found.emplace_back(prefix_of(path), &root[pointer]);
  }
  return found;
}

// The first of them that has experts. The others must not contradict it.
const Json& language_model(const Json& root) {
  if (!root.is_object()) {
    throw ArgumentError(
        fmt::format("the configuration is {}, not a JSON object: give the text of a config.json or "
                    "params.json",
                    detail::shown(root)));
  }
  const auto all = descriptions(root);
  const auto model = std::ranges::find_if(
      all, [](const auto& one) { return ConfigValues(*one.second).num_experts() != 0; });
  if (model == all.end()) {
    detail::refuse_unknown_experts(root);
    throw ArgumentError(fmt::format(
        "a dense model has no routes: none of {} is above 1, at the top or under "
        "\"text_config\", or one of {} is false. If "
        "its experts have other names, use ModelShape's constructor",
        fmt::join(detail::expert_names(), ", "), fmt::join(detail::switch_names(), ", ")));
  }
  for (const auto& [prefix, other] : all) {
    if (other == model->second) continue;
    ConfigValues(*model->second).require_same(model->first, ConfigValues(*other), prefix);
  }
  return *model->second;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw SystemError(errno,
                      fmt::format("cannot open {}, give the path of a config.json or params.json",
                                  path.string()));
  }
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
  const Json root = detail::parse_python_json(json, "the configuration");
  const ConfigValues config(language_model(root));
  const int num_layers = config.num_layers();
  detail::refuse_unknown_schedules(config, root);
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
