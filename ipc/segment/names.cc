#include "ipc/internal/names.h"

#include <fmt/format.h>

#include "ipc/segment/leftovers.h"
#include "lib/internal/numbers.h"

namespace moetap {
namespace {

// Identifies the endpoint within its instance. Each part begins with its own letter or a number, so
// that no two names are equal, whatever the instance's name ends with.
std::string share(const Endpoint& endpoint) {
  std::string text = fmt::format("{}", endpoint.dp_rank);
  if (endpoint.stage > 0) text += fmt::format("_s{}", endpoint.stage);
  if (endpoint.part > 0) text += fmt::format("_p{}", endpoint.part);
  return text;
}

bool remove_prefix(std::string_view& text, std::string_view prefix) {
  const bool there = text.starts_with(prefix);
  if (there) text.remove_prefix(prefix.size());
  return there;
}

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  const bool there = text.ends_with(suffix);
  if (there) text.remove_suffix(suffix.size());
  return there;
}

// Removes "<before><number>" from the end.
std::optional<int> remove_number(std::string_view& text, std::string_view before) {
  const std::size_t at = text.find_last_not_of("0123456789") + 1;
  const auto digits = text.substr(at);
  const auto number = detail::parse_number<int>(digits);
  if (!number || !text.substr(0, at).ends_with(before)) return std::nullopt;
  text.remove_suffix(digits.size() + before.size());
  return number;
}

}  // namespace

std::optional<NamedEndpoint> parse_name(std::string_view name) {
  if (!remove_prefix(name, kOurPrefix) && !remove_prefix(name, kWirePrefix)) return std::nullopt;
  remove_suffix(name, "_ring");
  NamedEndpoint found;
  found.part = remove_number(name, "_p").value_or(0);
  found.stage = remove_number(name, "_s").value_or(0);
  const std::optional<int> rank = remove_number(name, "_");
  if (!rank) return std::nullopt;
  found.dp_rank = *rank;
  found.instance = name;
  return found;
}

std::string buffer_name(const Endpoint& endpoint) {
  const auto prefix = endpoint.layout == ShmLayout::wire ? "vllm_routed_experts_buffer" : "moetap";
  return fmt::format("/{}_{}_{}", prefix, endpoint.instance, share(endpoint));
}

std::string ring_name(const Endpoint& endpoint) {
  return fmt::format("{}{}_{}_ring", kOurPrefix, endpoint.instance, share(endpoint));
}

}  // namespace moetap
