// moetap-demo: serves a request trace with simulated models, and checks every route that moetap
// delivers.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "examples/simulator/run.h"
#include "examples/simulator/worker.h"

namespace demo {
namespace {

struct Options {
  std::string trace;
  std::string model = "qwen3-30b-a3b";
  std::size_t requests = 0;
  std::string transport = "both";
  std::string layout = "native";
  std::string host_cache = "scheduler";
  std::string weights = "none";
  std::int64_t kv_blocks = 0;
  std::uint64_t seed = 1;
  std::string json;
  RunOptions run;
};

// Without a trace: few enough blocks that requests are preempted.
constexpr std::size_t kGeneratedRequests = 64;
constexpr std::int64_t kGeneratedBlocks = 384;
constexpr std::int64_t kTraceBlocks = 4096;

std::atomic<bool> interrupted{false};

// From 0 to `most`, which CLI::Range cannot tell from NaN.
auto number(double most, const char* what) {
  return [most, what](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool good = !text.empty() && *end == '\0' && value >= 0 && value <= most;
    return good ? std::string() : text + " is not " + what;
  };
}

void add_share(CLI::App& app, const std::string& name, double& share, const std::string& what) {
  app.add_option(name, share, what)->check(number(1, "a share of 0 to 1"))->capture_default_str();
}

// What the clients and the scheduler do besides running one step after the other.
void add_life_options(CLI::App& app, Options& o) {
  SchedulerOptions& s = o.run.scheduler;
  app.add_option("--async-depth", o.run.engine.async_depth,
                 "steps that are planned before the oldest one's tokens are known")
      ->check(CLI::Range(1, 4))
      ->capture_default_str();
  app.add_option("--speculate", s.drafts, "tokens that a draft model proposes for a decode step")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  add_share(app, "--reject-rate", o.run.reject_rate, "of these, that the model rejects");
  add_share(app, "--abort-rate", s.clients.abort, "requests whose clients give up at some step");
  add_share(app, "--opt-in", s.clients.opt_in, "requests that ask for their rows");
  add_share(app, "--stream", s.clients.stream, "of these, that ask while they run");
  add_share(app, "--follow-up", o.run.engine.follow_up,
            "of requests that begin like an earlier one, that have its rows and ask for the rest");
  app.add_option("--offload-blocks", o.run.engine.offload.blocks,
                 "keep the rows of this many blocks that leave the KV cache, and take them back "
                 "with the blocks")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--offload-dir", o.run.engine.offload.directory,
                 "keep them in this directory, where other runs find them (default: in memory)");
  app.add_flag("--hold", s.hold_blocks,
               "keep a request's blocks until its rows are read, instead of reading them when a "
               "block is reused");
}

void add_options(CLI::App& app, Options& o) {
  app.add_option("--trace", o.trace,
                 "Azure CSV or Mooncake JSONL (default: a small generated trace)");
  app.add_option("--model", o.model, "a known model's name, or a Hugging Face config.json")
      ->capture_default_str();
  app.add_option("--requests", o.requests,
                 fmt::format("how many of the trace's requests (default: the first {}; {} "
                             "generated ones)",
                             kDefaultRequests, kGeneratedRequests))
      ->check(CLI::PositiveNumber);
  app.add_option("--transport", o.transport)
      ->check(CLI::IsMember({"shm", "device", "both"}))
      ->capture_default_str();
  app.add_option("--layout", o.layout, "of the shm transport's memory: native, or vLLM's (wire)")
      ->check(CLI::IsMember({"native", "wire"}))
      ->capture_default_str();
  app.add_option("--weights", o.weights, "of the router, captured and verified beside the ids")
      ->check(CLI::IsMember({"none", "float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option(
         "--host-cache", o.host_cache,
         "where the device transport keeps rows: scheduler, by slot, or per-request, in the "
         "worker (then without a prefix cache, whose hits the worker never computes)")
      ->check(CLI::IsMember({"scheduler", "per-request"}))
      ->capture_default_str();
  app.add_option("--workers", o.run.workers, "data-parallel workers, a process each")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--kv-blocks", o.kv_blocks,
                 fmt::format("KV-cache blocks of a worker (default: {}, or twice what the longest "
                             "request needs; {} for generated requests)",
                             kTraceBlocks, kGeneratedBlocks))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app.add_option("--block-size", o.run.scheduler.block_size, "tokens of a KV-cache block")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--max-tokens", o.run.scheduler.max_tokens, "tokens of a step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--step-ms", o.run.step_ms, "time that the pretended forward pass takes at least")
      ->check(number(5000, "a time of 0 to 5000 ms"))
      ->capture_default_str();
  app.add_option("--device", o.run.device, "auto, host, inline, cuda or cuda:N")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of generated requests and sampled tokens")
      ->capture_default_str();
  app.add_option("--json", o.json, "write the figures to this file");
  add_life_options(app, o);
}

moetap::ModelShape model_shape(const std::string& model, const std::string& weights) {
  auto shape = std::filesystem::is_regular_file(model) ? moetap::ModelShape::from_config_file(model)
                                                       : moetap::ModelShape::known(model);
  for (const auto type : {moetap::WeightType::float32, moetap::WeightType::bfloat16}) {
    if (weights == moetap::weight_type_name(type)) return shape.with_weights(type);
  }
  return shape;
}

void set_kv_blocks(Options& o, const Trace& trace) {
  const std::int64_t size = o.run.scheduler.block_size;
  const std::int64_t longest = (trace.longest() + size - 1) / size;
  if (o.kv_blocks != 0) {
    o.run.scheduler.num_blocks = o.kv_blocks;
  } else if (o.trace.empty()) {
    o.run.scheduler.num_blocks = std::max(kGeneratedBlocks, longest);
  } else {
    o.run.scheduler.num_blocks = std::max(kTraceBlocks, 2 * longest);
  }
}

// Checked before a run, so that its figures are not lost at the end. Keeps the file's contents.
void expect_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) throw moetap::SystemError(errno, "cannot write " + path);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw moetap::SystemError(errno, "cannot write " + path);
}

// Options that contradict each other.
void check_together(Options& o) {
  const OffloadOptions& offload = o.run.engine.offload;
  if (!offload.directory.empty() && offload.blocks == 0) {
    throw moetap::ArgumentError("--offload-dir without --offload-blocks, the room that it has");
  }
  if (o.host_cache == "per-request") {
    const bool by_slot = offload.blocks != 0 || o.run.engine.follow_up > 0 ||
                         o.run.scheduler.clients.stream > 0 || o.run.scheduler.hold_blocks;
    if (o.transport != "device" || by_slot) {
      throw moetap::ArgumentError(
          "--host-cache per-request is of --transport device (name that too), and has no rows by "
          "slot for --stream, --follow-up, --offload-blocks or --hold");
    }
    o.run.rows_by_request = true;
    o.run.scheduler.prefix_cache = false;
  }
  if (o.layout == "native") return;
  o.run.layout = moetap::ShmLayout::wire;
  if (o.transport != "shm") {
    throw moetap::ArgumentError("--layout wire is of --transport shm; name that too");
  }
  if (o.weights != "none") {
    throw moetap::ArgumentError("--layout wire is int32 ids and has no room for --weights");
  }
  if (offload.blocks != 0) {
    throw moetap::ArgumentError(
        "--offload-blocks keeps rows that are present, and --layout wire cannot tell which are");
  }
}

int run_demo(Options& o) {
  check_together(o);
  if (!o.json.empty()) expect_writable(o.json);
  const moetap::ModelShape shape = model_shape(o.model, o.weights);
  const Trace trace =
      o.trace.empty() ? generate_trace(o.requests != 0 ? o.requests : kGeneratedRequests, o.seed)
                      : load_trace(o.trace, o.requests, o.seed);
  set_kv_blocks(o, trace);
  o.run.scheduler.max_requests = std::min<std::int64_t>(64, o.run.scheduler.max_tokens);
  fmt::print("{}: {}; {}: {} requests; {} worker(s), {} KV blocks of {} tokens each\n", o.model,
             shape.to_string(), trace.name, trace.requests.size(), o.run.workers,
             o.run.scheduler.num_blocks, o.run.scheduler.block_size);
  std::fflush(stdout);

  std::vector<RunReport> runs;
  for (const TransportKind kind : {TransportKind::shm, TransportKind::device}) {
    if (o.transport != "both" && o.transport != transport_name(kind)) continue;
    o.run.transport = kind;
    runs.push_back(run_simulation(o.run, shape, trace, interrupted));
    runs.back().model = o.model;
  }
  fmt::print("{}", to_table(runs));
  if (!o.json.empty()) write_file(o.json, to_json(runs));

  int status = 0;
  for (const RunReport& run : runs) {
    for (const std::string& example : run.rows.examples) {
      fmt::print(stderr, "{}: {}\n", run.transport, example);
    }
    const std::string failure = run.failure();
    if (failure.empty()) continue;
    fmt::print(stderr, "FAILED: {}\n", failure);
    status = 1;
  }
  return status;
}

int main(int argc, char** argv) {
  CLI::App app(
      "Serves a request trace with a pretended mixture-of-experts model in real processes, "
      "and checks every route that moetap delivers.");
  Options options;
  add_options(app, options);
  int fd = -1;
  CLI::App* worker = app.add_subcommand("worker")->group("");  // what the demo starts; hidden
  worker->add_option("--fd", fd)->required();
  CLI11_PARSE(app, argc, argv);
  if (worker->parsed()) return run_worker(fd);

  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  try {
    return run_demo(options);
  } catch (const Interrupted&) {
    fmt::print(stderr, "interrupted\n");
    return 130;
  } catch (const std::exception& error) {
    fmt::print(stderr, "moetap-demo: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) { return demo::main(argc, argv); }
