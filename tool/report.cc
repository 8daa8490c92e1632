// Inspections as JSON and as text.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/internal/number_format.h"
#include "tool/inspection.h"
#include "tool/text.h"

namespace moetap::tool {
namespace {

using Kind = SegmentInfo::Kind;
using Owner = SegmentInfo::Owner;

constexpr std::string_view name_of(Kind kind) {
  constexpr std::string_view names[] = {"shm", "ring", "wire", "other"};
  return names[static_cast<std::size_t>(kind)];
}

constexpr std::string_view name_of(Owner owner) {
  constexpr std::string_view names[] = {"alive", "dead", "unknown"};
  return names[static_cast<std::size_t>(owner)];
}

nlohmann::json failed_steps(const Inspection& found) {
  auto list = nlohmann::json::array();
  for (const auto& [step, reason] : found.failed_steps) {
    list.push_back({{"step", step.value()}, {"reason", printable(reason)}});
  }
  return list;
}

std::string head(const Inspection& found) {
  const SegmentInfo& segment = found.segment;
  std::string text =
      fmt::format("{}: {}, {}, owner {}", printable(segment.name), name_of(segment.kind),
                  human_bytes(segment.bytes), name_of(segment.owner));
  if (segment.owner_pid != 0) text += fmt::format(" ({})", process(segment.owner_pid, ""));
  if (segment.kind == Kind::ring) {
    text += fmt::format(", reader {}", process(segment.reader_pid, "not there"));
  }
  return text + '\n';
}

}  // namespace

nlohmann::json to_json(const Inspection& found) {
  const SegmentInfo& segment = found.segment;
  nlohmann::json json = {{"name", printable(segment.name)},  {"kind", name_of(segment.kind)},
                         {"owner", name_of(segment.owner)},  {"owner_pid", segment.owner_pid},
                         {"reader_pid", segment.reader_pid}, {"user", segment.user},
                         {"bytes", segment.bytes},           {"problem", nullptr}};
  if (!found.problem.empty()) json["problem"] = printable(found.problem);
  if (!found.endpoint) return json;
  const Endpoint& endpoint = *found.endpoint;
  json.update({{"instance", endpoint.instance},
               {"dp_rank", endpoint.dp_rank},
               {"stage", endpoint.stage},
               {"part", endpoint.part},
               {"moe_layers", endpoint.shape.moe_layers()},
               {"num_hidden_layers", endpoint.shape.num_hidden_layers()},
               {"top_k", endpoint.shape.top_k()},
               {"num_experts", endpoint.shape.num_experts()},
               {"repeats_experts", endpoint.shape.repeats_experts()},
               {"weights", weight_type_name(endpoint.shape.weight_type())},
               {"num_slots", endpoint.num_slots},
               {"max_tokens", endpoint.max_tokens},
               {"last_step", found.last_step.value()}});
  if (segment.kind == Kind::ring) {
    json.update({{"ring_depth", endpoint.ring_depth},
                 {"waiting", found.waiting},
                 {"dropped_steps", found.dropped.count},
                 {"given_up_steps", found.dropped.given_up},
                 {"last_dropped_step", found.dropped.last.value()}});
  } else {
    json.update({{"rows_present", found.rows_present},
                 {"lock_held", found.lock_held},
                 {"lock_holder", found.lock_holder},
                 {"failed_steps", failed_steps(found)}});
  }
  return json;
}

std::string to_text(const Inspection& found) {
  std::string text = head(found);
  if (!found.problem.empty()) text += fmt::format("    problem: {}\n", printable(found.problem));
  if (!found.endpoint) return text;
  const Endpoint& endpoint = *found.endpoint;
  text += fmt::format("    {}, {} slots, steps of up to {} tokens\n", endpoint.shape.to_string(),
                      endpoint.num_slots, endpoint.max_tokens);
  if (found.segment.kind == Kind::ring) {
    text += fmt::format("    last step {}, {} of {} records wait for the reader\n", found.last_step,
                        found.waiting, endpoint.ring_depth);
    if (found.dropped.count == 0) return text;
    return text +
           fmt::format(
               "    {} steps have no rows: {} were dropped for want of room, {} given up by the "
               "engine; the last is step {}\n",
               found.dropped.count, found.dropped.count - found.dropped.given_up,
               found.dropped.given_up, found.dropped.last);
  }
  text += fmt::format(
      "    last step {}, {} rows present, lock held by {}\n", found.last_step, found.rows_present,
      process(found.lock_holder, found.lock_held
                                     ? "a process that cannot be named (in another PID namespace)"
                                     : "no process"));
  for (const auto& [step, reason] : found.failed_steps) {
    text += fmt::format("    step {} failed: {}\n", step, printable(reason));
  }
  return text;
}

}  // namespace moetap::tool
