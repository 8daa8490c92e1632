// The memory that an endpoint will need. Every number comes from the function that the allocation
// itself uses.
#include <moetap/endpoint.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <vector>

#include "gpu/internal/device_cache.h"
#include "gpu/internal/wanted_tokens.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/wire_layout.h"
#include "lib/internal/step_record.h"
#include "tool/commands.h"
#include "tool/output.h"
#include "tool/text.h"

namespace moetap::tool {
namespace {

struct Part {
  const char* key;
  const char* what;
  std::uint64_t bytes;  // of one rank
};

struct Transport {
  const char* name;
  std::vector<Part> parts;
};

WeightType weights_of(const PlanOptions& options) {
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
    if (options.weights == weight_type_name(type)) return type;
  }
  return WeightType::none;
}

ModelShape model_of(const PlanOptions& options) {
  const bool numbers = options.layers != 0 || options.top_k != 0 || options.experts != 0;
  if (int(!options.config.empty()) + int(!options.model.empty()) + int(numbers) != 1) {
    throw ArgumentError(
        "name the model in one way: --config, --model, or --layers, --top-k and "
        "--experts");
  }
  if (!options.config.empty()) return ModelShape::from_config_file(options.config);
  if (!options.model.empty()) return ModelShape::known(options.model);
  return ModelShape::uniform(options.layers, options.top_k, options.experts);
}

ModelShape shape_of(const PlanOptions& options) {
  return model_of(options).with_weights(weights_of(options));
}

Endpoint endpoint_of(const PlanOptions& options) {
  if (options.blocks > std::numeric_limits<std::int64_t>::max() / options.block_size) {
    throw ArgumentError(fmt::format("{} blocks of {} tokens: more than there are numbers for",
                                    options.blocks, options.block_size));
  }
  Endpoint endpoint{.instance = "plan",
                    .dp_rank = options.ranks - 1,
                    .shape = shape_of(options),
                    .num_slots = options.blocks * options.block_size,
                    .max_tokens = options.tokens,
                    .ring_depth = options.ring_depth};
  endpoint.validate();
  return endpoint;
}

// more + n * bytes.
std::uint64_t times(int n, std::uint64_t bytes, const char* option, std::uint64_t more = 0) {
  std::uint64_t all = 0;
  if (!__builtin_mul_overflow(bytes, n, &all) && !__builtin_add_overflow(all, more, &all)) {
    return all;
  }
  throw ArgumentError(
      fmt::format("{} {}: so many times {} bytes are more than 2^64, use fewer", option, n, bytes));
}

std::vector<Transport> transports(const Endpoint& endpoint, int staging_depth) {
  const ModelShape& shape = endpoint.shape;
  const std::size_t cache = DeviceCache::bytes(shape, endpoint.max_tokens);
  const std::size_t record = StepRecordLayout(shape, endpoint.max_tokens).bytes;
  const std::size_t list = WantedTokens::list_bytes(endpoint.max_tokens);
  const std::size_t ring = Ring::bytes(endpoint);
  const auto depth = static_cast<std::size_t>(endpoint.ring_depth);
  const Part bus{"bus_bytes_per_step", "over the bus, a step of that many tokens", record};
  const auto of_shm = [&](const char* name, std::size_t shared) {
    return Transport{
        name,
        {{"device_bytes", "device memory: cache, 1 staging record", cache + record + list},
         {"pinned_bytes", "pinned: 1 record", record + list},
         {"shared_bytes", "shared memory: slot buffer", shared},
         {"scheduler_bytes", "the scheduler's own", 0},
         bus}};
  };
  std::vector<Transport> all = {of_shm("shm", native_bytes(endpoint))};
  if (shape.weight_type() == WeightType::none) {  // the wire layout has no room for them
    all.push_back(of_shm("shm, wire layout", wire_bytes(endpoint)));
  }
  const std::size_t staged = times(staging_depth, record + list, "--staging-depth", cache);
  all.push_back({"device",
                 {{"device_bytes", "device memory: cache, staging records", staged},
                  {"pinned_bytes", "pinned: the ring, lists of tokens", ring + depth * list},
                  {"shared_bytes", "shared memory: the ring", ring},
                  {"scheduler_bytes", "the scheduler's own: slot buffer",
                   SlotBuffer::bytes(endpoint.num_slots, shape.row_bytes())},
                  bus}});
  return all;
}

// "0, 3-60".
std::string ranges(const std::vector<int>& layers) {
  std::string text;
  for (auto first = layers.begin(); first != layers.end();) {
    auto last = first;
    while (last + 1 != layers.end() && last[1] == *last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", *first);
    if (last != first) text += fmt::format("-{}", *last);
    first = last + 1;
  }
  return text;
}

std::string to_text(const ModelShape& shape) {
  return fmt::format(
      "{}; rows of {} bytes\n"
      "MoE layers {} of {} hidden layers\n",
      shape.to_string(), shape.row_bytes(), ranges(shape.moe_layers()), shape.num_hidden_layers());
}

std::string to_text(const Endpoint& endpoint, const std::vector<Transport>& all, int ranks) {
  std::string text =
      fmt::format("{}{} slots, steps of up to {} tokens, {} {}\n", to_text(endpoint.shape),
                  endpoint.num_slots, endpoint.max_tokens, ranks, ranks == 1 ? "rank" : "ranks");
  for (const Transport& transport : all) {
    text += fmt::format("\n{}\n", transport.name);
    for (const Part& part : transport.parts) {
      const auto total = times(ranks, part.bytes, "--ranks");
      text += fmt::format("  {:<42} {:>14} B a rank {:>10}", part.what, part.bytes,
                          human_bytes(part.bytes));
      text += ranks > 1 ? fmt::format(", all {:>10}\n", human_bytes(total)) : "\n";
    }
  }
  return text;
}

nlohmann::json to_json(const ModelShape& shape) {
  return {{"num_layers", shape.num_layers()},
          {"moe_layers", shape.moe_layers()},
          {"num_hidden_layers", shape.num_hidden_layers()},
          {"top_k", shape.top_k()},
          {"num_experts", shape.num_experts()},
          {"weights", weight_type_name(shape.weight_type())},
          {"row_bytes", shape.row_bytes()}};
}

nlohmann::json to_json(const Endpoint& endpoint, const std::vector<Transport>& all, int ranks) {
  nlohmann::json json = to_json(endpoint.shape);
  json.update(
      {{"num_slots", endpoint.num_slots}, {"max_tokens", endpoint.max_tokens}, {"ranks", ranks}});
  for (const Transport& transport : all) {
    auto& parts = json["per_rank"]
                      [transport.name == std::string("shm, wire layout") ? "wire" : transport.name];
    for (const Part& part : transport.parts) parts[part.key] = part.bytes;
  }
  return json;
}

}  // namespace

ExitStatus plan_command(const PlanOptions& options) {
  if (options.blocks == 0) {
    const ModelShape shape = shape_of(options);
    print(options.json ? to_json(shape).dump() + '\n' : to_text(shape));
    return kDone;
  }
  const Endpoint endpoint = endpoint_of(options);
  const auto all = transports(endpoint, options.staging_depth);
  print(options.json ? to_json(endpoint, all, options.ranks).dump() + '\n'
                     : to_text(endpoint, all, options.ranks));
  return kDone;
}

}  // namespace moetap::tool
