#include "test/simulation/trace.h"

#include <moetap/error.h>

namespace moetap::simulation {

Json to_json(const RowPlan& plan) {
  Json windows = Json::array();
  for (const StepWindow& window : plan.windows) windows.push_back(to_json(window.last));
  Json verdicts = Json::array();
  for (const auto& [positions, state] : plan.verdicts) {
    verdicts.push_back({positions.start, positions.end, static_cast<int>(state)});
  }
  return {{"request", to_json(plan.request)},    {"positions", to_json(plan.range)},
          {"slots", to_json(plan.slots)},        {"steps", std::move(windows)},
          {"blocks", to_json(plan.blocks)},      {"verdicts", std::move(verdicts)},
          {"last_step", to_json(plan.last_step)}};
}

Json to_json(const MovePlan& plan) {
  return {{"step", to_json(plan.step)},
          {"from", to_json(plan.from)},
          {"to", to_json(plan.to)},
          {"last_step", to_json(plan.last_step)}};
}

Json to_json(const FillPlan& plan) {
  return {{"step", to_json(plan.step)},
          {"slots", to_json(plan.slots)},
          {"last_step", to_json(plan.last_step)}};
}

Json to_json(const Routes& routes) {
  Json states = Json::array();
  for (const RowState state : routes.states()) states.push_back(static_cast<int>(state));
  return {{"positions", to_json(routes.range())},
          {"states", std::move(states)},
          {"rows", to_json(routes.bytes())}};
}

Json to_json(std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

void Trace::note(const char* what, Json fields) {
  if (!on()) return;
  fields["call"] = what;
  fields["worker"] = worker_;
  history_.call(fields.dump());
}

const char* Trace::error_name(const std::exception& error) {
  if (dynamic_cast<const ArgumentError*>(&error) != nullptr) return "ArgumentError";
  if (dynamic_cast<const RangeError*>(&error) != nullptr) return "RangeError";
  if (dynamic_cast<const StateError*>(&error) != nullptr) return "StateError";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "TimeoutError";
  if (dynamic_cast<const StepFailed*>(&error) != nullptr) return "StepFailed";
  return "Error";
}

}  // namespace moetap::simulation
