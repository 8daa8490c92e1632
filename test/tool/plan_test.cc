#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/host_device.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lib/internal/step_record.h"
#include "test/tool/tool_test.h"

namespace moetap {
namespace {

using test::Result;
using test::run_tool;

// The host device, counting what is taken from it.
class CountingDevice final : public Device {
 public:
  std::size_t device = 0;
  std::size_t pinned = 0;

  std::string name() const override { return host_->name(); }
  Buffer allocate(std::size_t bytes) override {
    device += bytes;
    return host_->allocate(bytes);
  }
  Buffer allocate_pinned(std::size_t bytes) override {
    pinned += bytes;
    return host_->allocate_pinned(bytes);
  }
  Buffer pin(std::span<std::byte> memory) override {
    pinned += memory.size();
    return host_->pin(memory);
  }
  std::unique_ptr<Event> make_event() override { return host_->make_event(); }
  std::unique_ptr<Stream> make_stream() override { return host_->make_stream(); }
  void load(const KernelEntry& kernel) override { host_->load(kernel); }

 private:
  std::unique_ptr<Device> host_ = make_host_device();
};

class Plan : public test::ToolTest {
 protected:
  static std::vector<std::string> numbers() {
    return {"plan", "--layers",     "3", "--top-k",         "2", "--experts",
            "16",   "--tokens",     "8", "--blocks",        "4", "--block-size",
            "16",   "--ring-depth", "4", "--staging-depth", "3", "--json"};
  }
};

// Against the workers themselves: what they allocate is what was planned.
class PlanOfWeights : public Plan, public ::testing::WithParamInterface<WeightType> {};
INSTANTIATE_TEST_SUITE_P(All, PlanOfWeights,
                         ::testing::Values(WeightType::none, WeightType::float32,
                                           WeightType::bfloat16),
                         [](const auto& info) {
                           return std::string(weight_type_name(info.param));
                         });

TEST_P(PlanOfWeights, IsWhatWorkersTake) {
  endpoint.shape = endpoint.shape.with_weights(GetParam());
  std::vector<std::string> arguments = numbers();
  arguments.insert(arguments.end(), {"--weights", std::string(weight_type_name(GetParam()))});
  const Result result = run_tool(arguments);
  ASSERT_EQ(result.status, 0) << result.output;
  const auto plan = result.json();
  EXPECT_EQ(plan["num_slots"], endpoint.num_slots);
  EXPECT_EQ(plan["row_bytes"], endpoint.shape.row_bytes());
  const auto& shm = plan["per_rank"]["shm"];
  const auto& device = plan["per_rank"]["device"];
  const auto size_of = [](const std::string& name) {
    return std::filesystem::file_size("/dev/shm" + name);
  };
  {
    CountingDevice counted;
    const Capturer worker(make_shm_transport(counted, endpoint));
    EXPECT_EQ(shm["shared_bytes"], size_of(buffer_name(endpoint)));
    EXPECT_EQ(shm["device_bytes"], counted.device);
    EXPECT_EQ(shm["pinned_bytes"], counted.pinned);
  }
  {
    CountingDevice counted;
    const Capturer worker(make_device_transport(counted, endpoint, {.staging_depth = 3}));
    EXPECT_EQ(device["shared_bytes"], size_of(ring_name(endpoint)));
    EXPECT_EQ(device["device_bytes"], counted.device);
    EXPECT_EQ(device["pinned_bytes"], counted.pinned);
  }
  const std::size_t record = StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes;
  EXPECT_EQ(shm["bus_bytes_per_step"], record);
  EXPECT_EQ(device["bus_bytes_per_step"], record);
  EXPECT_EQ(plan["weights"], weight_type_name(GetParam()));
  EXPECT_EQ(plan["per_rank"].contains("wire"), GetParam() == WeightType::none);
  if (GetParam() != WeightType::none) return;
  Endpoint wire = endpoint;
  wire.layout = ShmLayout::wire;
  const ShmWriter writer(wire);
  EXPECT_EQ(plan["per_rank"]["wire"]["shared_bytes"], size_of(buffer_name(wire)));
}

TEST_F(Plan, TakesTheModelFromAFileOrByName) {
  const std::string config = directory.path() / "config.json";
  std::ofstream(config) << R"({"num_hidden_layers": 48, "num_experts": 128,
                               "num_experts_per_tok": 8})";
  const auto by_file = run_tool({"plan", "--config", config, "--blocks", "64", "--json"});
  const auto by_name = run_tool({"plan", "--model", "qwen3-30b-a3b", "--blocks", "64", "--json"});
  EXPECT_EQ(by_file.status, 0) << by_file.output;
  EXPECT_EQ(by_file.json(), by_name.json());
  EXPECT_EQ(by_name.json()["row_bytes"], 384);
  const Result text =
      run_tool({"plan", "--model", "qwen3-30b-a3b", "--blocks", "64", "--ranks", "2"});
  EXPECT_TRUE(test::contains(text.output, "48 layers x top-8 of 128 experts")) << text.output;
  EXPECT_TRUE(test::contains(text.output, "2 ranks")) << text.output;
  EXPECT_TRUE(test::contains(text.output, "MoE layers 0-47 of 48 hidden layers")) << text.output;
}

TEST_F(Plan, NamesTheMoeLayers) {  // H34
  const std::string config = directory.path() / "config.json";
  std::ofstream(config) << R"({"num_hidden_layers": 8, "num_experts": 16, "moe_top_k": 2,
                               "mlp_layer_types": ["dense", "sparse", "sparse", "sparse",
                                                   "dense", "sparse", "dense", "dense"]})";
  const Result text = run_tool({"plan", "--config", config, "--blocks", "64"});
  EXPECT_TRUE(test::contains(text.output, "MoE layers 1-3, 5 of 8 hidden layers")) << text.output;
  const auto json = run_tool({"plan", "--config", config, "--blocks", "64", "--json"}).json();
  EXPECT_EQ(json["moe_layers"], (nlohmann::json{1, 2, 3, 5}));
  EXPECT_EQ(json["num_hidden_layers"], 8);
}

TEST_F(Plan, NamesTheLayersWithoutAnEndpoint) {
  const std::string config = directory.path() / "config.json";
  std::ofstream(config) << R"({"num_hidden_layers": 8, "num_experts": 16, "moe_top_k": 2,
                               "first_k_dense_replace": 1})";
  const Result text = run_tool({"plan", "--config", config});
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_TRUE(test::contains(text.output, "7 layers x top-2 of 16 experts")) << text.output;
  EXPECT_TRUE(test::contains(text.output, "MoE layers 1-7 of 8 hidden layers")) << text.output;
  EXPECT_FALSE(test::contains(text.output, "device")) << text.output;
  const auto json = run_tool({"plan", "--config", config, "--json"}).json();
  EXPECT_EQ(json["moe_layers"], (nlohmann::json{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(json["num_hidden_layers"], 8);
  EXPECT_EQ(json["row_bytes"], 14);
  EXPECT_FALSE(json.contains("per_rank"));
  // What is of an endpoint is not taken and ignored.
  for (const char* option :
       {"--tokens", "--block-size", "--ranks", "--ring-depth", "--staging-depth"}) {
    const Result refused = run_tool({"plan", "--config", config, option, "2"});
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_TRUE(test::contains(refused.output, option)) << refused.output;
    EXPECT_TRUE(test::contains(refused.output, "--blocks")) << refused.output;
  }
}

TEST_F(Plan, NamesTheOptionThatTakesMoreBytesThanThereAreNumbersFor) {
  const auto expect_refused = [](std::vector<std::string> more, const std::string& named) {
    const std::vector<std::string> plan{"plan", "--blocks", "65536"};
    more.insert(more.begin(), plan.begin(), plan.end());
    const Result result = run_tool(more);
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_TRUE(test::contains(result.output, named)) << result.output;
  };
  expect_refused({"--model", "qwen3-30b-a3b", "--ranks", "999999", "--staging-depth", "2147483647"},
                 "--ranks 999999");
  const std::vector<std::string> large{"--layers", "1024",      "--top-k",
                                       "1000",     "--experts", "1000",
                                       "--tokens", "16777216",  "--staging-depth"};
  auto huge = large;
  huge.emplace_back("2147483647");
  expect_refused(huge, "--staging-depth 2147483647");
}

TEST_F(Plan, OfWhatCannotBeIsWrongUsage) {
  const auto status = [](std::vector<std::string> more) {
    more.insert(more.begin(), "plan");
    return run_tool(std::move(more)).status;
  };
  EXPECT_EQ(status({"--blocks", "1"}), 2) << "no model";
  EXPECT_EQ(status({}), 2) << "no model";
  EXPECT_EQ(status({"--model", "gpt-2", "--blocks", "1"}), 2);
  EXPECT_EQ(status({"--model", "kimi-k2", "--layers", "3", "--blocks", "1"}), 2) << "two models";
  EXPECT_EQ(status({"--model", "kimi-k2", "--blocks", "0"}), 2);
  EXPECT_EQ(status({"--model", "kimi-k2", "--blocks", "9223372036854775807"}), 2);
  EXPECT_EQ(status({"--model", "kimi-k2", "--blocks", "1", "--tokens", "-1"}), 2);
  EXPECT_EQ(status({"--model", "kimi-k2", "--blocks", "1", "--ranks", "0"}), 2);
  EXPECT_EQ(status({"--model", "kimi-k2", "--blocks", "1", "--staging-depth", "0"}), 2);
  EXPECT_EQ(status({"--config", directory.path() / "none.json", "--blocks", "1"}), 1);
}

}  // namespace
}  // namespace moetap
