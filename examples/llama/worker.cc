// A worker: runs a model with llama.cpp, and captures what its routers pick.
//
//   worker MODEL.gguf CONFIG.json shm|device INSTANCE PICKS
//
// Takes orders as example.h says. To PICKS it writes what the routers picked for each request that
// is over, as it was read from the graph for the tokens that the request's sequence has: int64
// request and number of rows, then int32 [rows][layers][top_k]. This way knows nothing of slots and
// steps.
#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/transport.h>

#include <llama.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "example.h"
#include "model.h"
#include "route_tap.h"

namespace example {
namespace {

using Row = std::vector<std::int32_t>;  // [layers][top_k]

std::unique_ptr<moetap::Transport> make_transport(const std::string& name, moetap::Device& device,
                                                  const moetap::Endpoint& endpoint) {
  if (name == "shm") return moetap::make_shm_transport(device, endpoint);
  if (name == "device") return moetap::make_device_transport(device, endpoint);
  throw moetap::ArgumentError("transport '" + name + "': choose shm or device");
}

class Worker {
 public:
  Worker(const std::string& model, const moetap::Endpoint& endpoint, const std::string& transport,
         const std::string& picks)
      : shape_(endpoint.shape),
        device_(moetap::open_device("inline")),
        tap_(*device_, make_transport(transport, *device_, endpoint)),
        model_(load(model)),
        batch_(endpoint.max_tokens),
        sampler_(llama_sampler_chain_init(llama_sampler_chain_default_params())),
        rows_of_sequence_(kSequences),
        picks_(picks, std::ios::binary) {
    // Cells for what the blocks hold, and for the parts of blocks that are computed twice.
    llama_context_params params =
        context_params(2 * endpoint.num_slots, endpoint.max_tokens, kSequences);
    tap_.attach(params);
    context_ = make_context(*model_, params);
    llama_sampler_chain_add(sampler_.get(), llama_sampler_init_temp(1.0F));
    llama_sampler_chain_add(sampler_.get(), llama_sampler_init_dist(1));
    tap_.on_picks([this](int layer, const ggml_tensor& tensor) { read_back(layer, tensor); });
  }

  void run(std::istream& orders, std::ostream& answers) {
    for (std::string line; std::getline(orders, line);) {
      std::istringstream words(line);
      words.exceptions(std::ios::failbit);
      std::string order;
      words >> order;
      if (order == "end") return;
      if (order == "step") {
        answers << step(words, orders) << std::endl;
      } else if (order == "copy") {
        copy(words);
      } else if (order == "keep") {
        keep(words);
      } else if (order == "over") {
        over(words);
        answers << std::endl;
      } else {
        throw std::runtime_error("no order '" + order + "'");
      }
    }
  }

 private:
  struct Chunk {
    llama_seq_id sequence;
    std::int64_t first;
    bool samples;
    std::int64_t count;
  };

  std::string step(std::istringstream& words, std::istream& orders) {
    std::int64_t number = 0;
    std::size_t count = 0;
    words >> number >> count;
    batch_.clear();
    slots_.clear();
    std::vector<Chunk> chunks(count);
    for (Chunk& chunk : chunks) take(chunk, orders);
    rows_.assign(slots_.size(), Row(shape_.row_ids(), -1));

    if (const int status = tap_.decode(context_.get(), batch_.get(), moetap::Step(number), slots_);
        status != 0) {
      throw std::runtime_error("llama_decode() of step " + std::to_string(number) + " returned " +
                               std::to_string(status));
    }
    report_failures();
    return finish(chunks);
  }

  // A line of a step's, into the batch.
  void take(Chunk& chunk, std::istream& orders) {
    std::string line;
    std::getline(orders, line);
    std::istringstream words(line);
    words.exceptions(std::ios::failbit);
    words >> chunk.sequence >> chunk.first >> chunk.samples >> chunk.count;
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      llama_token token = 0;
      words >> token;
      batch_.add(token, chunk.first + i, chunk.sequence);
    }
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      std::int64_t slot = 0;
      words >> slot;
      slots_.emplace_back(slot);
    }
  }

  // Gives the rows that were read back to their sequences, and samples.
  std::string finish(const std::vector<Chunk>& chunks) {
    std::ostringstream answer;
    std::size_t at = 0;
    for (const Chunk& chunk : chunks) {
      auto& rows = rows_of_sequence_.at(static_cast<std::size_t>(chunk.sequence));
      if (rows.size() != static_cast<std::size_t>(chunk.first)) {
        throw std::runtime_error("sequence " + std::to_string(chunk.sequence) + " has " +
                                 std::to_string(rows.size()) + " tokens, and is to go on at " +
                                 std::to_string(chunk.first));
      }
      for (std::int64_t i = 0; i < chunk.count; ++i) rows.push_back(std::move(rows_[at++]));
      if (chunk.samples) {
        answer << llama_sampler_sample(sampler_.get(), context_.get(),
                                       static_cast<std::int32_t>(at) - 1)
               << ' ';
      }
    }
    return answer.str();
  }

  // Element by element, where capture() takes the memory as a whole.
  void read_back(int layer, const ggml_tensor& tensor) {
    const auto at = static_cast<std::size_t>(shape_.layer_index(layer) * shape_.top_k());
    for (std::size_t token = 0; token < rows_.size(); ++token) {
      for (int k = 0; k < shape_.top_k(); ++k) {
        std::memcpy(&rows_[token][at + static_cast<std::size_t>(k)],
                    static_cast<const char*>(tensor.data) + token * tensor.nb[1] +
                        static_cast<std::size_t>(k) * tensor.nb[0],
                    sizeof(std::int32_t));
      }
    }
  }

  void copy(std::istringstream& words) {
    llama_seq_id from = 0;
    llama_seq_id to = 0;
    std::int64_t tokens = 0;
    words >> from >> to >> tokens;
    llama_memory_seq_cp(llama_get_memory(context_.get()), from, to, 0,
                        static_cast<llama_pos>(tokens));
    const auto& rows = rows_of_sequence_.at(static_cast<std::size_t>(from));
    rows_of_sequence_.at(static_cast<std::size_t>(to)).assign(rows.begin(), rows.begin() + tokens);
  }

  void keep(std::istringstream& words) {
    llama_seq_id sequence = 0;
    std::int64_t tokens = 0;
    words >> sequence >> tokens;
    llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, static_cast<llama_pos>(tokens),
                        -1);
    rows_of_sequence_.at(static_cast<std::size_t>(sequence))
        .resize(static_cast<std::size_t>(tokens));
  }

  void over(std::istringstream& words) {
    std::int64_t request = 0;
    std::size_t sequence = 0;
    std::int64_t tokens = 0;
    words >> request >> sequence >> tokens;
    write(request);
    write(tokens);
    for (std::int64_t i = 0; i < tokens; ++i) {
      for (const std::int32_t id : rows_of_sequence_.at(sequence).at(static_cast<std::size_t>(i))) {
        write(id);
      }
    }
    picks_.flush();
  }

  template <class Number>
  void write(Number number) {
    picks_.write(reinterpret_cast<const char*>(&number), sizeof number);
  }

  void report_failures() {
    if (!tap_.failure().empty()) std::cerr << "worker: " << tap_.failure() << '\n';
    for (const moetap::StepFailed& failed : tap_.capturer().take_failures()) {
      std::cerr << "worker: " << failed.what() << '\n';
    }
  }

  moetap::ModelShape shape_;
  std::unique_ptr<moetap::Device> device_;
  RouteTap tap_;
  Model model_;
  Context context_;
  Batch batch_;
  Sampler sampler_;
  std::vector<moetap::Slot> slots_;                 // of the batch
  std::vector<Row> rows_;                           // of the batch, read back
  std::vector<std::vector<Row>> rows_of_sequence_;  // of the tokens that it has now
  std::ofstream picks_;
};

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: worker MODEL.gguf CONFIG.json shm|device INSTANCE PICKS\n";
    return 2;
  }
  try {
    example::Worker worker(argv[1], example::endpoint(argv[2], argv[4]), argv[3], argv[5]);
    worker.run(std::cin, std::cout);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "worker: " << error.what() << '\n';
    return 1;
  }
}
