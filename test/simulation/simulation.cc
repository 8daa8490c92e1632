#include "test/simulation/simulation.h"

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/stages.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <utility>

#include "test/simulation/witness.h"

namespace moetap::simulation {
namespace {

std::string next_instance() {
  static std::atomic<int> counter{0};
  return fmt::format("sim-{}-{}", getpid(), ++counter);
}

// The layers of stage `number` of `stages`, by index: [first, end).
std::pair<int, int> layers_of(int number, int stages, int layers) {
  return {number * layers / stages, (number + 1) * layers / stages};
}

ModelShape part_of(const ModelShape& shape, std::pair<int, int> layers) {
  const auto first = shape.moe_layers().begin();
  return {{first + layers.first, first + layers.second}, shape.top_k(), shape.num_experts()};
}

std::int64_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

}  // namespace

class Simulation::Replica final : public Worker {
 public:
  Replica(Simulation& simulation, int rank);

  bool run(const StepWork& step) override {
    bool done = true;
    for (const auto& stage : stages_) done = stage->run(step) && done;
    return done;
  }
  void accept(Step step, RequestId request, std::int64_t num_tokens,
              std::span<const std::int64_t> accepted) override {
    for (const auto& stage : stages_) stage->accept(step, request, num_tokens, accepted);
  }
  void end_request(RequestId request, RequestEnd how) override {
    for (const auto& stage : stages_) stage->end_request(request, how);
  }
  void go_on() override {
    simulation_.device_->step();
    for (const auto& stage : stages_) {
      stage->hold(false);
      stage->go_on();
    }
    for (auto left = simulation_.dice_.draw(20); left > 0 && simulation_.device_->step(); --left) {
    }
  }

  Engine& engine() { return *engine_; }
  void hold_a_stream() {
    auto& stage = simulation_.dice_.any_of(stages_);
    stage->hold(simulation_.dice_.chance(50));
    ++simulation_.counts_[Event::streams_held];
  }
  void finish() {
    engine_->finish();
    for (int tries = 0; !std::ranges::all_of(stages_, [](auto& s) { return s->finish(); });) {
      require(++tries < 500, "deadlock: the last step does not leave the device");
      engine_->let_go_on();
    }
  }

 private:
  std::unique_ptr<SlotReadTransport> make_reader();

  Simulation& simulation_;
  Trace trace_;
  std::unique_ptr<Oracle> oracle_;
  std::vector<StageOptions> options_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Engine> engine_;
};

Simulation::Replica::Replica(Simulation& s, int rank) : simulation_(s), trace_(s.history_, rank) {
  Dice& dice = s.dice_;
  EngineOptions options = EngineOptions::draw(dice);
  options.continued = rank == 0 && dice.chance(50) ? 25 : 0;
  const int layers = s.shape_.num_layers();
  const bool shm = dice.chance(35);
  options.per_request = !shm && dice.chance(30);
  if (options.per_request) {
    options.keeps = false;
    options.declares = dice.chance(70);
    options.accepts_late = dice.chance(50);
  }
  const bool in_stages = !options.per_request && dice.chance(50);
  const auto stages = static_cast<int>(in_stages ? 2 + dice.draw(std::min(1, layers - 2)) : 1);
  options.joined = stages > 1;
  oracle_ = std::make_unique<Oracle>(s.router_, options.num_blocks * kBlock, stages,
                                     static_cast<std::uint32_t>(rank) << 24);
  for (int i = 0; i < stages; ++i) {
    const Endpoint endpoint{.instance = s.instance_,
                            .dp_rank = rank,
                            .stage = i,
                            .shape = part_of(s.shape_, layers_of(i, stages, layers)),
                            .num_slots = options.num_blocks * kBlock,
                            .max_tokens = Stage::kMaxTokens,
                            .ring_depth = static_cast<int>(1 + dice.draw(3)),
                            .timeout = Milliseconds(0)};
    StageOptions stage{.endpoint = endpoint,
                       .number = i,
                       .shm = shm,
                       .per_request = options.per_request,
                       .drafts = options.drafts()};
    stage.first_layer = layers_of(i, stages, layers).first;
    stage.draw(dice, s.router_.misses_routes);
    stages_.push_back(
        std::make_unique<Stage>(stage, *s.device_, *oracle_, dice, s.counts_, s.history_, trace_));
    options_.push_back(std::move(stage));
  }
  s.history_.note("worker {}: {} blocks, {} steps in flight, {} drafts, reading {}, {} stages, {}",
                  rank, options.num_blocks, options.depth, options.most_drafts,
                  static_cast<int>(options.reading), stages,
                  shm                   ? "shm"
                  : options.per_request ? "device, rows by request"
                                        : "device");
  const auto elsewhere = [&s](Continuation continuation) {
    s.replicas_.back()->engine().continue_here(std::move(continuation));
  };
  Engine::Parts parts{.dice = dice,
                      .counts = s.counts_,
                      .history = s.history_,
                      .trace = trace_,
                      .oracle = *oracle_,
                      .worker = *this,
                      .reader = nullptr,
                      .store = s.store_.get(),
                      .stored = &s.stored_,
                      .go_on_elsewhere = elsewhere};
  if (options.per_request) {
    auto reader = std::make_unique<RequestWitness>(make_request_reader(options_.front().endpoint),
                                                   options.num_blocks * kBlock, *oracle_);
    parts.take = [by_request = reader.get()](RequestId request, TokenRange range) {
      return by_request->take(request, range);
    };
    parts.reader = std::move(reader);
  } else {
    parts.reader = make_reader();
  }
  engine_ = std::make_unique<Engine>(options, std::move(parts));
}

std::unique_ptr<SlotReadTransport> Simulation::Replica::make_reader() {
  std::vector<std::unique_ptr<SlotReadTransport>> readers;
  for (const StageOptions& stage : options_) {
    auto reader = stage.shm ? make_shm_reader(stage.endpoint) : make_device_reader(stage.endpoint);
    auto witness =
        std::make_unique<Witness>(std::move(reader), stage.number, stage.shm, *oracle_, trace_);
    witness->meanwhile = [this] {
      if (engine_) engine_->meanwhile();
    };
    readers.push_back(std::move(witness));
  }
  if (readers.size() == 1) return std::move(readers.front());
  ++simulation_.counts_[Event::workers_of_stages];
  return join_stages(simulation_.shape_, std::move(readers));
}

Simulation::Simulation(std::uint64_t seed, Counts& counts, History& history)
    : open_files_(open_files()),
      dice_(seed),
      counts_(counts),
      history_(history),
      instance_(next_instance()),
      device_(make_seeded_device(dice_.number())),
      shape_(draw_shape()),
      router_{shape_.num_layers(), shape_.top_k(), shape_.num_experts(), dice_.chance(50)} {
  history_.note("{}", shape_.to_string());
  Trace(history_, -1)
      .note("model", {{"layers", shape_.moe_layers()},
                      {"top_k", shape_.top_k()},
                      {"num_experts", shape_.num_experts()},
                      {"block_size", kBlock}});
  if (dice_.chance(50)) {
    store_ = make_memory_block_store({.shape = shape_,
                                      .block_size = kBlock,
                                      .max_bytes = std::size_t{1} << 20,
                                      .model_version = {}});
  }
  const auto replicas = static_cast<int>(1 + (dice_.chance(50) ? dice_.draw(2) : 0));
  for (int rank = 0; rank < replicas; ++rank) {
    replicas_.push_back(std::make_unique<Replica>(*this, rank));
  }
}

Simulation::~Simulation() = default;

ModelShape Simulation::draw_shape() {
  constexpr int kExperts[] = {8, 60, 128, 256, 257, 300};
  std::vector<int> layers;
  const std::int64_t count = 2 + dice_.draw(2);
  for (int id = static_cast<int>(dice_.draw(2)); std::ssize(layers) < count; ++id) {
    if (dice_.chance(70)) layers.push_back(id);
  }
  return {std::move(layers), static_cast<int>(1 + dice_.draw(3)), dice_.any_of(kExperts)};
}

void Simulation::tick() {
  for (const auto& replica : replicas_) {
    if (dice_.chance(15)) continue;  // it stalls
    replica->engine().tick();
    if (dice_.chance(10)) replica->hold_a_stream();
  }
  for (auto left = dice_.draw(30); left > 0 && device_->step(); --left) {
  }
}

void Simulation::run() {
  const std::int64_t ticks = 60 / std::ssize(replicas_);
  for (std::int64_t i = 0; i < ticks; ++i) tick();
  for (const auto& replica : replicas_) replica->finish();
  while (!replicas_.empty()) replicas_.pop_back();
  check_leftovers();
}

void Simulation::check_leftovers() const {
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = file.path().filename();
    require(name.find(instance_ + "_") == std::string::npos, "{} is left", name);
  }
  require(open_files() == open_files_, "{} files are open, {} were", open_files(), open_files_);
}

Outcome simulate(std::uint64_t seed, Counts& counts, History::Prints prints) {
  History history(prints);
  try {
    Simulation(seed, counts, history).run();
  } catch (const std::exception& error) {
    return {history.hash(), error.what()};
  }
  return {history.hash(), ""};
}

}  // namespace moetap::simulation
