// Experts that nobody reads: a model of which they are ignored would be called dense.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moetap::detail {

// Of a configuration in which no experts were found: ArgumentError that names the first key that
// looks like a number of them, above 1. Descriptions of other models are left alone, and of those
// whose experts are switched off.
void refuse_unknown_experts(const nlohmann::json& root);

}  // namespace moetap::detail
