// What it costs a forward pass to capture its routes.
//
//   cost MODEL.gguf CONFIG.json INSTANCE
//
// Prints medians of several rounds, in which the ways take turns.
#include <moetap/device.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model.h"
#include "route_tap.h"

namespace example {
namespace {

constexpr std::int64_t kMaxTokens = 256;
constexpr int kRounds = 20;

// One way to run a step: llama.cpp alone, or with a tap.
class Way {
 public:
  Way(std::string name, llama_model& model, bool all_logits)
      : name_(std::move(name)), all_logits_(all_logits) {
    context_ = make_context(model, context_params(kMaxTokens, kMaxTokens, 1));
  }

  Way(const std::string& transport, llama_model& model, const moetap::Endpoint& endpoint)
      : name_(transport), all_logits_(true), device_(moetap::open_device("inline")) {
    const bool shm = transport == "shm";
    tap_ = std::make_unique<RouteTap>(*device_,
                                      shm ? moetap::make_shm_transport(*device_, endpoint)
                                          : moetap::make_device_transport(*device_, endpoint));
    reader_.emplace(shm ? moetap::make_shm_reader(endpoint) : moetap::make_device_reader(endpoint));
    llama_context_params params = context_params(kMaxTokens, kMaxTokens, 1);
    tap_->attach(params);
    context_ = make_context(model, params);
  }

  const std::string& name() const { return name_; }

  // Microseconds of a step of so many tokens.
  double run(std::int64_t tokens) {
    llama_memory_seq_rm(llama_get_memory(context_.get()), 0, -1, -1);
    batch_.clear();
    for (std::int64_t i = 0; i < tokens; ++i) {
      batch_.add(static_cast<llama_token>(i % 100), i, 0, all_logits_ || i + 1 == tokens);
    }
    const auto start = std::chrono::steady_clock::now();
    const int status = decode(tokens);
    llama_synchronize(context_.get());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (status != 0) throw std::runtime_error("llama_decode() returned " + std::to_string(status));
    if (tap_ && !tap_->failure().empty()) throw std::runtime_error(tap_->failure());
    if (reader_) reader_->wait_for(moetap::Step(step_), std::chrono::seconds(10));
    return took.count();
  }

 private:
  int decode(std::int64_t tokens) {
    if (!tap_) return llama_decode(context_.get(), batch_.get());
    return tap_->decode(
        context_.get(), batch_.get(), moetap::Step(++step_),
        moetap::as_slots(std::span(slots_).first(static_cast<std::size_t>(tokens))));
  }

  std::string name_;
  bool all_logits_;
  std::unique_ptr<moetap::Device> device_;
  std::unique_ptr<RouteTap> tap_;
  std::optional<moetap::Reader> reader_;
  Context context_;
  Batch batch_{kMaxTokens};
  std::uint64_t step_ = 0;
  std::vector<std::int64_t> slots_ = [] {
    std::vector<std::int64_t> slots(kMaxTokens);
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
  }();
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::string load_of_machine() {
  std::string load = "unknown";
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

void measure(const std::string& path, const std::string& config, const std::string& instance) {
  const Model model = load(path);
  moetap::Endpoint endpoint{.instance = instance,
                            .shape = moetap::ModelShape::from_config_file(config),
                            .num_slots = kMaxTokens,
                            .max_tokens = kMaxTokens};
  std::vector<std::unique_ptr<Way>> ways;
  ways.push_back(std::make_unique<Way>("llama.cpp alone", *model, false));
  ways.push_back(std::make_unique<Way>("with all logits", *model, true));
  for (const char* transport : {"shm", "device"}) {
    endpoint.instance = instance + "-" + transport;
    ways.push_back(std::make_unique<Way>(transport, *model, endpoint));
  }
  std::printf("%s; load of the machine %s\n", endpoint.shape.to_string().c_str(),
              load_of_machine().c_str());
  for (const std::int64_t tokens : {1, 16, 256}) {
    std::vector<std::vector<double>> times(ways.size());
    for (int round = -3; round < kRounds; ++round) {
      for (std::size_t i = 0; i < ways.size(); ++i) {
        const double took = ways[i]->run(tokens);
        if (round >= 0) times[i].push_back(took);
      }
    }
    std::printf("  %3d tokens:", static_cast<int>(tokens));
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const double step = median(times[i]);
      std::printf("  %s %.0f us, %.2f a token", ways[i]->name().c_str(), step,
                  step / static_cast<double>(tokens));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: cost MODEL.gguf CONFIG.json INSTANCE\n";
    return 2;
  }
  try {
    example::measure(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "cost: " << error.what() << '\n';
    return 1;
  }
}
