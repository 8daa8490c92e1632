// The thread that keeps the worker's rows by request and hands them over at a request's end, so
// that neither the worker nor the device's callbacks ever wait for the scheduler.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/step.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gpu/transport/request_cache.h"
#include "gpu/transport/step_failures.h"
#include "ipc/internal/channel.h"

namespace moetap {

// Who does the keeping: a thread, or for tests that have one thread only whoever calls work().
enum class Keeping { in_a_thread, in_work };

// Takes steps and request ends in the order in which the worker names them: an end sees the rows of
// every step before it and of none behind it. The ring and the cache belong to its thread.
class RequestKeeper {
 public:
  // At most `max_steps` steps are expected and not yet kept.
  RequestKeeper(const Endpoint& endpoint, int max_steps, Keeping keeping);
  ~RequestKeeper();  // drops what is not handed over

  // The worker's side. Says whose rows the record to arrive as the number-th (0, 1, 2 …) holds,
  // before it arrives; may be repeated.
  void expect(std::uint64_t number, Step step, std::span<const RequestSpan> requests);
  // The worker dropped the step, after as many others: whatever was kept at its positions is
  // missing.
  void drop(std::uint64_t after, Step step, std::span<const RequestSpan> requests,
            std::uint64_t given_up);
  // `after` as many steps, not below what earlier calls named.
  void end(std::uint64_t request, RequestEnd how, std::uint64_t after);

  // Does what can be done without waiting; nothing if there is a thread for that.
  void work();

  // The device's side: the oldest step that has not arrived is in `record` (a StepRecord of
  // num_tokens), which must stay as it is until num_kept() counts the step.
  void arrived(std::byte* record, std::int64_t num_tokens, const StepFault& fault);

  // Steps that have been kept and announced to the scheduler.
  std::uint64_t num_kept() const;
  // Whether `step` is among them, and every request that could be handed over has been.
  bool caught_up(Step step) const;
  // Why it is behind, if the scheduler is to blame.
  std::string stalled() const;
  // Whether anything ended the thread; rethrows it.
  bool is_broken() const;
  void throw_broken() const;

 private:
  struct ExpectedStep {
    Step step = 0;
    std::vector<RequestSpan> requests;
    std::byte* record = nullptr;
    std::int64_t num_tokens = 0;
    StepFault fault;
  };
  // Steps that were dropped one after the other.
  struct Drop {
    std::uint64_t after;  // this many steps
    DropRun steps;
    std::vector<RequestSpan> lost;  // of all of them; what is next to each other is one
  };
  struct End {
    std::uint64_t request;
    RequestEnd how;
    std::uint64_t after;  // this many steps
  };

  void run() noexcept;
  bool do_next(std::unique_lock<std::mutex>& lock);
  bool end_is_next() const { return !ends_.empty() && ends_.front().after <= num_kept_; }
  bool drop_is_next() const { return !drops_.empty() && drops_.front().after <= num_kept_; }
  bool step_is_next() const { return num_arrived_ > num_kept_; }
  ExpectedStep& expected(std::uint64_t number) { return steps_[number % steps_.size()]; }

  void keep(const ExpectedStep& step);
  static void add(const RequestSpan& span, std::vector<RequestSpan>& to);
  void lose(const Drop& drop);
  void carry_out(const End& end);
  void hand_over(std::uint64_t request);
  std::span<std::byte> acquire();

  const Keeping keeping_;
  ModelShape shape_;
  std::int64_t max_tokens_;
  ChannelProducer ring_;
  RequestCache cache_;
  std::int64_t handed_over_ = 0;  // rows of the request that is next to end

  mutable std::mutex mutex_;  // of all below; held for a few instructions only
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<ExpectedStep> steps_;  // used in turn: kept <= arrived <= expected <= kept + size
  std::uint64_t num_arrived_ = 0;
  std::uint64_t num_kept_ = 0;
  Step last_kept_ = 0;
  std::deque<Drop> drops_;  // before the ends that come after as many steps
  std::deque<End> ends_;
  std::string stalled_;
  std::exception_ptr broken_;

  std::thread thread_;
};

}  // namespace moetap
