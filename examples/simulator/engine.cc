#include "examples/simulator/engine.h"

#include <moetap/error.h>
#include <moetap/read_rows.h>
#include <moetap/read_transport.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "lib/internal/number_format.h"

namespace demo {
namespace {

// How often a waiting scheduler checks whether its worker has died or it was interrupted.
constexpr moetap::Milliseconds kLook{200};

// How long to wait for a worker's shared memory or lock before checking the worker.
constexpr moetap::Milliseconds kWithoutAnswer{2000};

// Like real clients, asks for rows some steps after a request ends: its blocks may be reused
// meanwhile.
constexpr std::int64_t kReadAfter = 3;  // steps

// The number of new rows that a streaming client waits for.
constexpr std::int64_t kStreamRows = 32;

std::unique_ptr<moetap::SlotReadTransport> make_reader(const WorkerConfig& config) {
  return config.transport == TransportKind::shm ? moetap::make_shm_reader(config.endpoint)
                                                : moetap::make_device_reader(config.endpoint);
}

double us_between(std::int64_t began_ns, std::int64_t ended_ns) {
  return static_cast<double>(ended_ns - began_ns) / 1000;
}

}  // namespace

template <class Call>
auto Engine::patiently(Call&& call) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  for (;;) {
    try {
      return call(kLook);
    } catch (const moetap::TimeoutError&) {
      if (progress_.stop) throw Interrupted();
      worker_.check();
      if (std::chrono::steady_clock::now() >= deadline) throw;
    }
  }
}

Engine::Engine(WorkerProcess& worker, const WorkerConfig& config, const EngineOptions& options,
               Scheduler& scheduler, Progress& progress)
    : worker_(worker),
      options_(options),
      scheduler_(scheduler),
      progress_(progress),
      timeout_(config.endpoint.timeout),
      device_(start(config)),
      has_steps_(config.endpoint.layout == moetap::ShmLayout::native),
      clients_(config.endpoint.shape, scheduler.sequences(), options.follow_up),
      verifier_(config.endpoint.shape) {
  attach(config);
}

void Engine::attach(WorkerConfig config) {
  // Its end existed when it was ready: a wait of this length means that it is dead.
  config.endpoint.timeout = kWithoutAnswer;
  patiently([&](moetap::Milliseconds) {
    if (config.rows_by_request) {
      by_request_.emplace(moetap::make_request_reader(config.endpoint));
    } else {
      reader_.emplace(make_reader(config));
    }
  });
  if (by_request_) return;
  pending_.emplace(scheduler_.ledger(), *reader_);
  if (options_.offload.blocks > 0) {
    offload_.emplace(options_.offload, config.endpoint.shape, config.block_size,
                     scheduler_.ledger(), *reader_, timeout_);
    scheduler_.set_offload(&*offload_);
  }
  scheduler_.before_reuse([this](std::span<const BlockId> blocks) {
    patiently([&](moetap::Milliseconds timeout) { pending_->take_early(blocks, timeout); });
  });
}

EngineResult Engine::run() {
  const auto depth = static_cast<std::size_t>(options_.async_depth);
  while (!scheduler_.done() || scheduler_.in_flight() > 0) {
    if (progress_.stop) throw Interrupted();
    if (scheduler_.in_flight() < depth && !scheduler_.done()) {
      const StepPlan& plan = scheduler_.plan();
      if (!plan.empty()) {
        send(plan);
        leave(scheduler_.abort_due());
        // While the worker runs.
        read_due(std::max(scheduler_.last_step(), Step(kReadAfter)) - kReadAfter);
        continue;
      }
      if (scheduler_.in_flight() == 0) read_due(scheduler_.last_step());  // they hold the blocks
    }
    if (scheduler_.in_flight() > 0) complete_oldest();
  }
  encode(scheduler_.farewell(), message_);
  worker_.send(Message::plan, message_);
  read_due(scheduler_.last_step());
  result_.device = device_;
  result_.counts = scheduler_.counts();
  result_.clients = clients_.counts();
  if (offload_) result_.blocks_offloaded = offload_->stored();
  result_.rows = verifier_.counts();
  return std::move(result_);
}

// Returns the name of the worker's device, once its end of the transport exists.
std::string Engine::start(const WorkerConfig& config) {
  const std::string text = encode(config);
  worker_.send(Message::configure, std::as_bytes(std::span(text)));
  return to_text(receive(Message::ready));
}

std::span<const std::byte> Engine::receive(Message expected) {
  while (!worker_.ready(kLook)) {
    if (progress_.stop) throw Interrupted();
  }
  return worker_.expect(expected);
}

void Engine::send(const StepPlan& plan) {
  encode(plan, message_);
  worker_.send(Message::plan, message_);
  published_.push_back(has_steps_ && !plan.wanted.empty());
}

void Engine::complete_oldest() {
  const Step step = scheduler_.oldest_in_flight();
  const std::int64_t waiting_since = monotonic_ns();
  const bool published = published_.front();
  published_.pop_front();
  if (published) {
    try {
      patiently([&](moetap::Milliseconds timeout) {
        by_request_ ? by_request_->wait_for(step, timeout) : reader_->wait_for(step, timeout);
      });
    } catch (const moetap::StepFailed& failed) {
      fmt::print(stderr, "{}\n", failed.what());  // its rows are missing, which the report counts
    }
  }
  const std::int64_t visible = monotonic_ns();
  const StepReply reply = decode_reply(receive(Message::reply));
  if (reply.times.step != step) {
    throw moetap::MismatchError(
        fmt::format("a worker answered for step {} instead of {}", reply.times.step, step));
  }
  completed_ = step;
  result_.worker_overhead_us.push_back(us_between(0, reply.times.moetap_ns));
  if (published && waiting_since <= reply.times.forward_end_ns) {
    result_.visible_latency_us.push_back(us_between(reply.times.forward_end_ns, visible));
  }
  leave(scheduler_.complete(step, reply.counts, reply.sampled));
  for (const auto& sequence : scheduler_.running()) stream(*sequence);
}

// Gives a streaming client the new rows, if they have arrived.
void Engine::stream(Sequence& sequence) {
  if (!sequence.streams || sequence.computed < sequence.taken + kStreamRows) return;
  moetap::RowPlan plan = scheduler_.ledger().rows_since(sequence.id, sequence.taken);
  if (plan.last_step > completed_) return;  // more of the prompt is in flight
  plan.last_step = 0;
  moetap::RoutesView view = moetap::view_rows(
      *reader_, plan, fmt::format("the client of request {}", sequence.id), timeout_);
  clients_.stream(sequence, std::move(view).detach());
}

void Engine::leave(std::vector<Ended> ended) {
  for (Ended& one : ended) {
    if (!has_steps_) {  // the replies say what has arrived
      while (one.rows.last_step > completed_) complete_oldest();
      one.rows.last_step = 0;
    }
    const BlockId block = one.rows.blocks.empty() ? -1 : one.rows.blocks.front();
    if (pending_ && one.sequence->wants_rows) pending_->add(std::move(one.rows));
    if (by_request_ && one.aborted) one.end = 0;  // its worker has forgotten the rows
    unread_.push_back({std::move(one.sequence), one.end, block, scheduler_.last_step()});
  }
}

// Reads the rows of requests that ended at step `oldest` or earlier.
void Engine::read_due(Step oldest) {
  while (!unread_.empty() && unread_.front().since <= oldest) {
    read(unread_.front());
    unread_.pop_front();
    ++progress_.finished;
  }
}

void Engine::read(const Unread& unread) {
  Sequence& sequence = *unread.sequence;
  if (!sequence.wants_rows) return;
  const bool taken_early = pending_ && unread.block >= 0 && !scheduler_.ledger().held(unread.block);
  const std::int64_t began = monotonic_ns();
  const moetap::Routes rows = rows_of(unread);
  if (taken_early) {
    ++result_.taken_early;
  } else {
    result_.read_us_per_request.push_back(us_between(began, monotonic_ns()));
  }
  scheduler_.release(sequence);
  clients_.append(sequence, rows);
  verifier_.check(sequence.request, {0, unread.end}, clients_.finish(sequence));
}

moetap::Routes Engine::rows_of(const Unread& unread) {
  const RequestId request = unread.sequence->id;
  const moetap::TokenRange range{unread.sequence->taken, unread.end};
  if (by_request_ && range.size() == 0) return {by_request_->shape(), range};
  return patiently([&](moetap::Milliseconds timeout) {
    return by_request_ ? by_request_->take(request, range, timeout)
                       : pending_->collect(request, timeout);
  });
}

}  // namespace demo
