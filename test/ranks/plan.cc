#include "test/ranks/plan.h"

#include <charconv>
#include <stdexcept>
#include <string_view>

namespace moetap::test {
namespace {

// Calls visit(name, field) for every field that a command line can have.
template <class AnyPlan, class Visit>
void for_each_field(AnyPlan& plan, Visit&& visit) {
  visit("instance", plan.instance);
  visit("transport", plan.transport);
  visit("dp", plan.dp);
  visit("tp", plan.tp);
  visit("pp", plan.pp);
  visit("parts", plan.parts);
  visit("layout", plan.layout);
  visit("graph", plan.graph);
  visit("weights", plan.weights);
  visit("trouble", plan.trouble);
  visit("trouble_step", plan.trouble_step);
  visit("steps", plan.steps);
  visit("timeout_ms", plan.timeout_ms);
}

void assign(std::string& field, std::string_view text) { field = text; }
template <class Number>
void assign(Number& field, std::string_view text) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), field);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument("no number: " + std::string(text));
  }
}

std::string text_of(const std::string& field) { return field; }
template <class Number>
std::string text_of(const Number& field) {
  return std::to_string(field);
}

}  // namespace

Plan Plan::parse(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::size_t split = argument.find('=');
    bool known = false;
    for_each_field(plan, [&](std::string_view name, auto& field) {
      if (argument.substr(0, split) != name) return;
      known = true;
      assign(field, argument.substr(split + 1));
    });
    if (!known) throw std::invalid_argument("unknown: " + std::string(argument));
  }
  return plan;
}

std::vector<std::string> Plan::arguments() const {
  std::vector<std::string> all;
  for_each_field(*this, [&](const char* name, const auto& field) {
    all.push_back(std::string(name) + "=" + text_of(field));
  });
  return all;
}

Topology Plan::topology(int rank) const {
  Topology topology{.dp_size = dp,
                    .dp_rank = rank / (tp * pp),
                    .tp_size = tp,
                    .tp_rank = rank % tp,
                    .pp_size = pp,
                    .pp_rank = rank / tp % pp};
  if (parts != "none") topology.sp_size = tp;
  if (gathers()) topology.parts = SequenceParts::gathered;
  if (parts == "published") topology.parts = SequenceParts::published;
  if (layout == "concatenated") topology.layout = RankLayout::concatenated;
  if (layout == "padded") topology.layout = RankLayout::padded;
  if (pp == 2) topology.stage_layers = {{1, 2, 4}, {5, 7, 8}};
  if (pp == 3) topology.stage_layers = {{1, 5, 8}, {}, {2, 4, 7}};
  return topology;
}

Router Plan::router() const {
  WeightType type = WeightType::none;
  if (weights == "float32") type = WeightType::float32;
  if (weights == "bfloat16") type = WeightType::bfloat16;
  return {.shape = ModelShape({1, 2, 4, 5, 7, 8}, 3, 200).with_weights(type)};
}

Endpoint Plan::engine() const {
  return {.instance = instance,
          .shape = router().shape,
          .num_slots = steps * kPadded,
          .max_tokens = kPadded,
          .timeout = Milliseconds(60'000)};
}

std::int64_t Plan::num_tokens(Step step, int dp_rank) const {
  return 3 +
         static_cast<std::int64_t>(step.value() * 5 + static_cast<std::uint64_t>(dp_rank) * 3) % 8;
}

std::int64_t Plan::padded_tokens(Step step, int dp_rank) const {
  if (graph != "none" || layout == "padded") return kPadded;
  const std::int64_t tokens = num_tokens(step, dp_rank);
  return parts == "even" ? (tokens + tp - 1) / tp * tp : tokens;
}

std::vector<Slot> Plan::slots(Step step, int dp_rank) const {
  std::vector<Slot> slots;
  for (std::int64_t i = 0; i < num_tokens(step, dp_rank); ++i) {
    slots.push_back(Slot((step - Step(1)) * kPadded + i * 5 % kPadded));
  }
  return slots;
}

// In equal parts (vLLM's) where the padding sees to that, else the first ranks get one more (as
// torch.tensor_split).
std::vector<std::int64_t> Plan::split(std::int64_t tokens) const {
  std::vector<std::int64_t> counts;
  counts.reserve(static_cast<std::size_t>(tp));
  for (int rank = 0; rank < tp; ++rank)
    counts.push_back(tokens / tp + (rank < tokens % tp ? 1 : 0));
  return counts;
}

}  // namespace moetap::test
