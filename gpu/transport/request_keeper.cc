#include "gpu/transport/request_keeper.h"

#include <moetap/error.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "gpu/transport/step_descriptor.h"
#include "ipc/internal/system_limits.h"
#include "lib/internal/injection.h"
#include "lib/internal/step_record.h"

namespace moetap {
namespace {

// How soon the thread notices a stop while the ring is full. Callers that wait for it have their
// own timeout.
constexpr Milliseconds kStopPoll{50};

Endpoint polled(Endpoint endpoint) {
  endpoint.timeout = std::min(endpoint.timeout, kStopPoll);
  return endpoint;
}

struct Stopped {};
struct Full {};  // the ring is full, and no thread could wait

}  // namespace

RequestKeeper::RequestKeeper(const Endpoint& endpoint, int max_steps, Drafts drafts,
                             Keeping keeping)
    : keeping_(keeping),
      shape_(endpoint.shape),
      max_tokens_(endpoint.max_tokens),
      ring_(polled(endpoint)),
      cache_(endpoint.shape.row_bytes(), drafts),
      steps_(static_cast<std::size_t>(max_steps)) {
  for (ExpectedStep& step : steps_) {
    step.requests.reserve(static_cast<std::size_t>(endpoint.max_tokens));
  }
  if (keeping_ == Keeping::in_a_thread) {
    thread_ = start_thread("the cache of rows by request", [this] { run(); });
  }
}

// A step has few tokens of each request, which follow those of the previous step.
void RequestKeeper::add(const RequestSpan& span, std::vector<RequestSpan>& to) {
  for (RequestSpan& other : to) {
    const std::int64_t start = std::min(other.position, span.position);
    const std::int64_t end = std::max(other.position + other.count, span.position + span.count);
    if (other.request != span.request || end - start > other.count + span.count) continue;
    other = {span.request, start, end - start};
    return;
  }
  to.push_back(span);
}

RequestKeeper::~RequestKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RequestKeeper::expect(std::uint64_t number, Step step, std::span<const WantedSpan> requests) {
  const std::lock_guard lock(mutex_);
  ExpectedStep& next = expected(number);
  next.step = step;
  next.requests.assign(requests.begin(), requests.end());
}

void RequestKeeper::drop(std::uint64_t after, Step step, std::span<const WantedSpan> requests,
                         std::uint64_t given_up) {
  {
    const std::lock_guard lock(mutex_);
    if (drops_.empty() || drops_.back().after != after) drops_.push_back({after, {step}, {}});
    Drop& drop = drops_.back();
    drop.steps.last = step;
    ++drop.steps.total;
    drop.steps.given_up += given_up;
    for (const WantedSpan& wanted : requests) add(wanted.part(), drop.lost);
    // What was reported while the step was open need not wait for another step.
    for (Told& told : told_) told.after = std::min(told.after, after);
  }
  wake_.notify_one();
}

void RequestKeeper::tell(Told told) {
  {
    const std::lock_guard lock(mutex_);
    told_.push_back(std::move(told));
  }
  wake_.notify_one();
}

void RequestKeeper::arrived(std::byte* record, std::int64_t num_tokens, const StepFault& fault) {
  {
    const std::lock_guard lock(mutex_);
    ExpectedStep& step = expected(num_arrived_++);
    step.record = record;
    step.num_tokens = num_tokens;
    step.fault = fault;
  }
  wake_.notify_one();
}

std::uint64_t RequestKeeper::num_kept() const {
  const std::lock_guard lock(mutex_);
  return num_kept_;
}

bool RequestKeeper::caught_up(Step step) const {
  const std::lock_guard lock(mutex_);
  return last_kept_ >= step && !drop_is_next() && !told_is_next();
}

std::string RequestKeeper::stalled() const {
  const std::lock_guard lock(mutex_);
  return stalled_;
}

bool RequestKeeper::is_broken() const {
  const std::lock_guard lock(mutex_);
  return broken_ != nullptr;
}

void RequestKeeper::throw_broken() const {
  const std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
}

void RequestKeeper::run() noexcept {
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      wake_.wait(lock,
                 [this] { return stop_ || drop_is_next() || told_is_next() || step_is_next(); });
      if (stop_) return;
      do_next(lock);
    }
  } catch (const Stopped&) {
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    broken_ = std::current_exception();
  }
}

void RequestKeeper::work() {
  if (keeping_ == Keeping::in_a_thread) return;
  std::unique_lock lock(mutex_);
  try {
    while (do_next(lock)) {
    }
  } catch (const Full&) {
    // Interrupted work is repeated from its start, which changes nothing.
  }
}

// A task stays in its queue until it is done, and only this function's caller removes tasks. So the
// task may be used without the lock. Returns false if there is none.
bool RequestKeeper::do_next(std::unique_lock<std::mutex>& lock) {
  if (drop_is_next()) {
    const Drop drop = std::move(drops_.front());
    drops_.pop_front();
    lock.unlock();
    lose(drop);
    lock.lock();
    last_kept_ = drop.steps.last;
    return true;
  }
  if (told_is_next()) {
    const Told& told = told_.front();  // which stays where it is while others are added
    lock.unlock();
    carry_out(told);
    lock.lock();
    told_.pop_front();
    return true;
  }
  if (!step_is_next()) return false;
  const ExpectedStep& step = expected(num_kept_);
  lock.unlock();
  keep(step);
  lock.lock();
  last_kept_ = step.step;
  ++num_kept_;
  return true;
}

void RequestKeeper::keep(const ExpectedStep& step) {
  const StepRecordLayout layout(shape_, step.num_tokens);
  const StepRecordView record(shape_, step.num_tokens, {step.record, layout.bytes});
  std::size_t token = 0;
  for (const WantedSpan& wanted : step.requests) {
    const auto count = static_cast<std::size_t>(wanted.tokens.size());
    if (step.fault) {
      cache_.lose(step.step, wanted.part());
    } else {
      cache_.put(step.step, wanted,
                 record.rows.subspan(token * shape_.row_bytes(), count * shape_.row_bytes()),
                 record.slots.subspan(token, count));
    }
    token += count;
  }
  MOETAP_POINT("hand-over kept");
  acquire();
  ring_.commit(step_descriptor(Descriptor::Kind::step_done, step.step, 0, step.fault));
}

// Never waits; its time is bounded by their number.
void RequestKeeper::lose(const Drop& drop) {
  const bool keeps = MOETAP_OFF("H36 rows that were kept from before a dropped step");
  for (const RequestSpan& span : drop.lost) {
    if (!keeps) cache_.lose(drop.steps.last, span);
  }
  ring_.drop(drop.steps);
}

void RequestKeeper::carry_out(const Told& told) {
  if (const auto* how = std::get_if<RequestEnd>(&told.what)) return carry_out(told.request, *how);
  const auto& accepted = std::get<Accepted>(told.what);
  cache_.accept(accepted.step, told.request, accepted.position, accepted.tokens);
}

void RequestKeeper::carry_out(RequestId request, RequestEnd how) {
  if (how == RequestEnd::preempted) {
    if (!MOETAP_OFF("H10 rows that were kept of the first run")) cache_.clear(request);
    return;
  }
  // A request that never asked for rows would never be taken, and its end would stay in the reader.
  if (how == RequestEnd::finished && cache_.has(request)) hand_over(request);
  cache_.erase(request);
}

void RequestKeeper::hand_over(RequestId request) {
  const RequestCache::Rows kept = cache_.rows(request);
  const std::size_t row_bytes = shape_.row_bytes();
  const auto total = static_cast<std::int64_t>(kept.states.size());
  for (; handed_over_ < total; handed_over_ += max_tokens_) {
    const std::int64_t count = std::min(max_tokens_, total - handed_over_);
    const auto first = static_cast<std::size_t>(handed_over_);
    const auto rows = static_cast<std::size_t>(count);
    std::byte* to = acquire().data();
    std::memcpy(to, &kept.states[first], rows);
    std::memcpy(to + (rows + 63) / 64 * 64, &kept.rows[first * row_bytes], rows * row_bytes);
    ring_.commit({.kind = Descriptor::Kind::request,
                  .num_tokens = count,
                  .request = request,
                  .position = kept.position + handed_over_});
    MOETAP_POINT("hand-over of rows");
  }
  acquire();
  ring_.commit({.kind = Descriptor::Kind::request_end,
                .num_tokens = total,
                .request = request,
                .position = kept.doubtful});
  handed_over_ = 0;
}

std::span<std::byte> RequestKeeper::acquire() {
  for (;;) {
    try {
      const std::span<std::byte> record = ring_.acquire();
      const std::lock_guard lock(mutex_);
      stalled_.clear();
      return record;
    } catch (const TimeoutError& full) {
      const std::lock_guard lock(mutex_);
      if (stop_) throw Stopped{};
      stalled_ = full.what();
      if (keeping_ == Keeping::in_work) throw Full{};
    }
  }
}

}  // namespace moetap
