// Shows which batches have no rows, and that the engine goes on. Fails if one has some.
//
//   refusals MODEL.gguf CONFIG.json INSTANCE
#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <llama.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"
#include "route_tap.h"

namespace example {
namespace {

constexpr std::int64_t kTokens = 12;

class Refusals {
 public:
  Refusals(const std::string& model, const std::string& config, const std::string& instance)
      : endpoint_{.instance = instance,
                  .shape = moetap::ModelShape::from_config_file(config),
                  .num_slots = 64,
                  .max_tokens = 64},
        model_(load(model)) {}

  // Decodes a batch of two sequences of unequal length with these changes, which must fail with
  // this text. Then a batch as it should be, which must have rows.
  void expect(const std::string& text, const std::function<void(llama_context_params&)>& change,
              bool all_logits = true) {
    RouteTap tap(*device_, moetap::make_device_transport(*device_, endpoint_));
    moetap::Reader reader(moetap::make_device_reader(endpoint_));
    std::string failure = decode(tap, 1, change, all_logits);
    if (failure.find(text) == failure.npos) {
      throw std::runtime_error("not refused with '" + text + "', but '" + failure + "'");
    }
    require_no_rows(reader);
    std::cout << "refused: " << failure << '\n';
    failure = decode(
        tap, 2, [](llama_context_params&) {}, true);
    if (!failure.empty()) throw std::runtime_error("the next step: " + failure);
    reader.wait_for(moetap::Step(2), std::chrono::seconds(10));
  }

 private:
  // Returns why the batch has no rows.
  std::string decode(RouteTap& tap, std::uint64_t step,
                     const std::function<void(llama_context_params&)>& change, bool all_logits) {
    llama_context_params params = context_params(256, 64, 2);
    tap.attach(params);
    change(params);
    const Context context = make_context(*model_, params);
    Batch batch(kTokens);
    std::vector<moetap::Slot> slots;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      batch.add(static_cast<llama_token>(7 * i), i / 2, static_cast<llama_seq_id>(i % 2),
                all_logits || i + 1 == kTokens);
      slots.emplace_back(i);
    }
    if (const int status = tap.decode(context.get(), batch.get(), moetap::Step(step), slots);
        status != 0) {
      throw std::runtime_error("llama_decode() returned " + std::to_string(status));
    }
    if (llama_get_logits_ith(context.get(), kTokens - 1) == nullptr) {
      throw std::runtime_error("the batch has no logits");
    }
    return tap.failure();
  }

  static void require_no_rows(moetap::Reader& reader) {
    try {
      reader.wait_for(moetap::Step(1), std::chrono::seconds(10));
    } catch (const moetap::StepFailed&) {
      return;
    }
    throw std::runtime_error("the reader was not told that the step failed");
  }

  moetap::Endpoint endpoint_;
  std::unique_ptr<moetap::Device> device_ = moetap::open_device("inline");
  Model model_;
};

void run(const std::string& model, const std::string& config, const std::string& instance) {
  Refusals refusals(model, config, instance);
  const auto nothing = [](llama_context_params&) {};
  refusals.expect("rows", nothing, /*all_logits=*/false);
  refusals.expect("make n_ubatch larger",
                  [](llama_context_params& params) { params.n_ubatch = 8; });
  refusals.expect("in another order: make the context with kv_unified",
                  [](llama_context_params& params) { params.kv_unified = false; });
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: refusals MODEL.gguf CONFIG.json INSTANCE\n";
    return 2;
  }
  try {
    example::run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "refusals: " << error.what() << '\n';
    return 1;
  }
}
