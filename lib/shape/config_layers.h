// Which layers of a configuration have a router.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <vector>

#include "lib/shape/config_values.h"

namespace moetap::detail {

// The layers that every schedule of the configuration leaves, ascending. ArgumentError for one that
// is malformed or contradicts another.
std::vector<int> moe_layers_of(const ConfigValues& config);

// Of the language model `config`, which is `root` or somewhere in it: ArgumentError that names the
// first key of `root` that looks like a layer schedule and is not one that moe_layers_of() reads.
// Descriptions of other models (vision, audio, drafts) are left alone.
void refuse_unknown_schedules(const ConfigValues& config, const nlohmann::json& root);

}  // namespace moetap::detail
