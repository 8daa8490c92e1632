// The host device that runs everything in the caller's thread, in a drawn order.
#include <moetap/error.h>
#include <moetap/host_device.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/device/host/host_device.h"

namespace moetap {
namespace host {
namespace {

class SeededStream;

class SeededHost final : public HostDevice<SeededDevice> {
 public:
  explicit SeededHost(std::uint64_t seed) : seed_(seed), random_(seed), eagerness_(draw(5)) {}

  std::string name() const override { return fmt::format("host (seed {})", seed_); }
  std::unique_ptr<Stream> make_stream() override;

  void hold(Stream& stream, bool held) override;
  bool step() override {
    refuse_in_callback("step()");
    return run_one(Held::last);
  }

  void add(SeededStream& stream) { streams_.push_back(&stream); }
  void remove(SeededStream& stream) { std::erase(streams_, &stream); }

  // Called after each queued operation: runs none, some or all of the ready work.
  void draw_work();

  // A drawn number in [0, n).
  std::uint64_t draw(std::uint64_t n) { return random_() % n; }

 private:
  enum class Held { never, last };
  bool run_one(Held held);

  bool poll(const Point& point) override;
  void wait(const Point& point) override;
  void wait_all() override;

  std::uint64_t seed_;
  std::mt19937_64 random_;
  // The chance, in quarters, that one more operation runs after one was queued. Drawn once per
  // seed: some seeds run everything at once, others nothing until a wait. They find different bugs.
  std::uint64_t eagerness_;
  std::vector<SeededStream*> streams_;
};

class SeededStream final : public HostStream {
 public:
  explicit SeededStream(SeededHost& device) : HostStream(device), device_(device) {
    device_.add(*this);
  }

  ~SeededStream() override {
    device_.block_until(end());
    device_.remove(*this);
  }

  Point end() const override { return {timeline_, timeline_->done() + queue_.size()}; }

  bool held = false;

  bool ready() const {
    if (queue_.empty()) return false;
    const auto* wait = std::get_if<Wait>(&queue_.front());
    return wait == nullptr || wait->point.reached();
  }

  void run_front() noexcept {
    const Operation operation = std::move(queue_.front());
    queue_.pop_front();
    std::visit([this](const auto& one) { run_drawn(one); }, operation);
    timeline_->advance();
  }

 private:
  void enqueue(Operation operation) override {
    // A graph's operations are queued one by one, so that other streams' work can run in between.
    if (const auto* replay = std::get_if<Replay>(&operation)) {
      const auto& parts = replay->recording->operations;
      queue_.insert(queue_.end(), parts.begin(), parts.end());
    } else {
      queue_.push_back(std::move(operation));
    }
    device_.draw_work();
  }

  template <class Plain>
  void run_drawn(const Plain& operation) noexcept {
    if constexpr (std::is_same_v<Plain, KernelCall>) {
      run_lanes(operation);
    } else if constexpr (!std::is_same_v<Plain, Wait> && !std::is_same_v<Plain, Replay> &&
                         !std::is_same_v<Plain, Stop>) {
      run(operation);
    }
  }

  void run_lanes(const KernelCall& call) noexcept;

  SeededHost& device_;
  std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::deque<Operation> queue_;
};

// A drawn number of lanes, with the lanes of all blocks in a drawn order. i -> first + i * stride
// visits each of n once if stride and n are coprime.
void SeededStream::run_lanes(const KernelCall& call) noexcept {
  if (call.blocks() == 0) return;
  const std::uint64_t lanes = 1 + device_.draw(4);
  const std::uint64_t n = static_cast<std::uint64_t>(call.blocks()) * lanes;
  std::uint64_t stride = 1 + device_.draw(n);
  while (std::gcd(stride, n) != 1) stride = 1 + device_.draw(n);
  std::uint64_t at = device_.draw(n);
  for (std::uint64_t i = 0; i < n; ++i, at = (at + stride) % n) {
    call.entry().host(call.arguments(), {.index = static_cast<std::int64_t>(at / lanes),
                                         .lane = static_cast<int>(at % lanes),
                                         .lanes = static_cast<int>(lanes)});
  }
}

std::unique_ptr<Stream> SeededHost::make_stream() { return std::make_unique<SeededStream>(*this); }

void SeededHost::hold(Stream& stream, bool held) {
  const auto own = std::find(streams_.begin(), streams_.end(), &stream);
  if (own == streams_.end()) throw ArgumentError("hold() of a stream of another device");
  (*own)->held = held;
}

bool SeededHost::run_one(Held held) {
  const auto draw_ready = [this](bool of_held) -> SeededStream* {
    const auto ready = [&](const SeededStream* s) { return s->held == of_held && s->ready(); };
    auto left = std::count_if(streams_.begin(), streams_.end(), ready);
    if (left == 0) return nullptr;
    left = static_cast<std::ptrdiff_t>(draw(static_cast<std::uint64_t>(left)));
    return *std::find_if(streams_.begin(), streams_.end(),
                         [&](const SeededStream* s) { return ready(s) && left-- == 0; });
  };
  SeededStream* stream = draw_ready(false);
  if (stream == nullptr && held == Held::last) stream = draw_ready(true);
  if (stream == nullptr) return false;
  stream->run_front();
  return true;
}

void SeededHost::draw_work() {
  while (draw(4) < eagerness_ && run_one(Held::never)) {
  }
}

// A caller that polls must eventually see progress, whatever the eagerness.
bool SeededHost::poll(const Point& point) {
  if (draw(2) == 0) run_one(Held::last);
  return point.reached();
}

// Waits refer to work that was queued earlier, so some work can always run.
void SeededHost::wait(const Point& point) {
  while (!point.reached()) {
    if (run_one(Held::last)) continue;
    throw StateError(fmt::format(
        "deadlock on {}: waiting for operation {} of a stream that has done {}, and no stream has "
        "work that can run",
        name(), point.count, point.timeline->done()));
  }
}

void SeededHost::wait_all() {
  while (run_one(Held::last)) {
  }
}

}  // namespace
}  // namespace host

std::unique_ptr<SeededDevice> make_seeded_device(std::uint64_t seed) {
  return std::make_unique<host::SeededHost>(seed);
}

}  // namespace moetap
