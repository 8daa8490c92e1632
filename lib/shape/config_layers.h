// Which layers of a configuration have a router.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <vector>

#include "lib/shape/config_values.h"

namespace moetap::detail {

// The layers that remain after every schedule of the configuration, ascending. ArgumentError for a
// schedule that is malformed or contradicts another.
std::vector<int> moe_layers_of(const ConfigValues& config);

// For the language model `config`, which is `root` or a part of it. ArgumentError that names the
// first key of `root` that looks like a layer schedule and that moe_layers_of() does not read.
// Descriptions of other models (vision, audio, drafts) are skipped.
void refuse_unknown_schedules(const ConfigValues& config, const nlohmann::json& root);

}  // namespace moetap::detail
