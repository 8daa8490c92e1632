#include "gpu/collective/collective_watch.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <utility>

#include "ipc/internal/system_limits.h"

namespace moetap {
namespace {

// Timeouts are seconds; a check costs some microseconds.
constexpr Milliseconds kPause{5};

}  // namespace

CollectiveWatch::CollectiveWatch(Device& device, CollectiveBackend& backend, Milliseconds timeout,
                                 std::string who)
    : device_(device),
      backend_(backend),
      timeout_(timeout),
      who_(std::move(who)),
      thread_(start_thread("the watch of gathers", [this] { look_all_the_time(); })) {}

CollectiveWatch::~CollectiveWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void CollectiveWatch::look_all_the_time() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kPause, [this] { return stop_; })) {
    if (!failure_) look();
  }
}

void CollectiveWatch::look() {
  try {
    if (const auto error = backend_.error()) {
      throw CollectiveError(
          fmt::format("{} cannot gather any more: {}; start the ranks again", who_, *error));
    }
    const auto now = Clock::now();
    while (!watched_.empty()) {
      Watched& oldest = watched_.front();
      if (!oldest.begun && (!oldest.begin || oldest.begin->done())) oldest.begun = now;
      if (oldest.end->done()) {
        if (oldest.begin) spare_.push_back(std::move(oldest.begin));
        spare_.push_back(std::move(oldest.end));
        watched_.pop_front();
        continue;
      }
      if (oldest.begun && now - *oldest.begun >= timeout_) {
        throw TimeoutError(
            fmt::format("{}: a gather is not done {} ms after it began, so some rank is missing; "
                        "did it die, or is it still in an earlier step? Start the ranks again, or "
                        "raise the timeout",
                        who_, timeout_.count()));
      }
      return;
    }
  } catch (...) {  // also of the device: then the work may never finish
    fail(std::current_exception());
  }
}

void CollectiveWatch::fail(std::exception_ptr why) {
  if (failure_) return;
  failure_ = std::move(why);
  backend_.abort();
}

void CollectiveWatch::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
}

void CollectiveWatch::check() {
  const std::lock_guard lock(mutex_);
  rethrow();
}

std::unique_ptr<Event> CollectiveWatch::take_event() {
  if (spare_.empty()) return device_.make_event();
  std::unique_ptr<Event> event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

void CollectiveWatch::run(Stream& stream, const std::function<void()>& queue) {
  const bool recorded = records_graph(stream);
  const std::lock_guard lock(mutex_);
  rethrow();
  Watched watched;
  if (!recorded) {
    watched.begin = take_event();
    watched.end = take_event();
    stream.record(*watched.begin);
  }
  try {
    queue();
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  if (recorded) return;
  stream.record(*watched.end);
  watched_.push_back(std::move(watched));
}

void CollectiveWatch::until_here(Stream& stream) {
  const std::lock_guard lock(mutex_);
  rethrow();
  Watched watched{.begin = nullptr, .end = take_event(), .begun = std::nullopt};
  stream.record(*watched.end);
  watched_.push_back(std::move(watched));
}

}  // namespace moetap
