// Finds experts under unknown keys: if they were ignored, the model would be called dense.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moetap::detail {

// For a configuration in which no experts were found. ArgumentError that names the first key that
// looks like a number of experts above 1. Descriptions of other models, and of models whose experts
// are switched off, are skipped.
void refuse_unknown_experts(const nlohmann::json& root);

}  // namespace moetap::detail
