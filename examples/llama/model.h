// A llama.cpp model and a context of it, as this example needs them.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace example {

struct Free {
  void operator()(llama_model* model) const { llama_model_free(model); }
  void operator()(llama_context* context) const { llama_free(context); }
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Model = std::unique_ptr<llama_model, Free>;
using Context = std::unique_ptr<llama_context, Free>;
using Sampler = std::unique_ptr<llama_sampler, Free>;

inline Model load(const std::string& path) {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model) throw std::runtime_error("cannot load " + path);
  return model;
}

// A context with `cells` of KV cache for up to `sequences`, which computes up to `max_tokens` at
// once, in the order of the batch.
inline llama_context_params context_params(std::int64_t cells, std::int64_t max_tokens,
                                           int sequences) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(cells);
  params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(max_tokens);
  params.n_seq_max = static_cast<std::uint32_t>(sequences);
  // llama.cpp plans for an output of each sequence, also where a batch has fewer tokens.
  params.n_outputs_max = std::max(params.n_batch, params.n_seq_max);
  params.n_threads = params.n_threads_batch = 1;
  params.kv_unified = true;
  params.no_perf = true;
  return params;
}

inline Context make_context(llama_model& model, const llama_context_params& params) {
  Context context(llama_init_from_model(&model, params));
  if (!context) throw std::runtime_error("cannot make a context");
  return context;
}

// The tokens of a batch, with room for `max_tokens`.
class Batch {
 public:
  explicit Batch(std::int64_t max_tokens)
      : batch_(llama_batch_init(static_cast<std::int32_t>(max_tokens), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch_.n_tokens = 0; }
  // With `logits` false, the last layer's experts may not be computed for the token.
  void add(llama_token token, std::int64_t position, llama_seq_id sequence, bool logits = true) {
    const std::int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits ? 1 : 0;
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace example
