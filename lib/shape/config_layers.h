// Which layers of a configuration have a router.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string_view>
#include <vector>

#include "lib/shape/config_values.h"

namespace moetap::detail {

// The layers that every schedule of the configuration leaves, ascending. ArgumentError for one that
// is malformed or contradicts another.
std::vector<int> moe_layers_of(const ConfigValues& config);

// Of the language model `config`, found inside `around` (outermost first): ArgumentError that names
// the first key that looks like a layer schedule and is not one that moe_layers_of() reads.
void refuse_unknown_schedules(const ConfigValues& config,
                              std::span<const nlohmann::json* const> around);

}  // namespace moetap::detail
