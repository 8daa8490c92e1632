// The thread that stores the worker's rows by request and hands them over at the request's end. So
// neither the worker nor the device's callbacks ever wait for the scheduler.
#pragma once

#include <moetap/drafts.h>
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
#include <utility>
#include <variant>
#include <vector>

#include "gpu/transport/request_cache.h"
#include "gpu/transport/step_failures.h"
#include "ipc/internal/channel.h"

namespace moetap {

// Where the work runs: in a thread, or in calls of work() for single-threaded tests.
enum class Keeping { in_a_thread, in_work };

// Takes steps, accepted drafts and request ends in the order of the worker's calls: an end sees the
// rows of every step before it and of none after it. The ring and the cache belong to its thread.
class RequestKeeper {
 public:
  // As RequestCache::accept().
  struct Accepted {
    Step step = 0;
    std::int64_t position = 0;
    std::vector<std::int64_t> tokens;
  };

  // At most `max_steps` steps are expected and not yet kept.
  RequestKeeper(const Endpoint& endpoint, int max_steps, Drafts drafts, Keeping keeping);
  ~RequestKeeper();  // drops rows that are not handed over

  // The worker's side. Says, before it arrives, which requests' rows the record with this number
  // (0, 1, 2 …) has. May be repeated.
  void expect(std::uint64_t number, Step step, std::span<const WantedSpan> requests);
  // The worker dropped the step after this many others: rows kept at its positions become missing.
  void drop(std::uint64_t after, Step step, std::span<const WantedSpan> requests,
            std::uint64_t given_up);
  // `after` this many steps, not below that of earlier calls.
  void end(RequestId request, RequestEnd how, std::uint64_t after) { tell({request, after, how}); }
  void accept(RequestId request, Accepted accepted, std::uint64_t after) {
    tell({request, after, std::move(accepted)});
  }

  // Does the work that needs no waiting; does nothing if there is a thread.
  void work();

  // The device's side: the oldest step that has not arrived is in `record` (a StepRecord of
  // num_tokens), which must stay as it is until num_kept() counts the step.
  void arrived(std::byte* record, std::int64_t num_tokens, const StepFault& fault);

  // Steps that have been kept and announced to the scheduler.
  std::uint64_t num_kept() const;
  // Whether `step` is among them, and every finished request has been handed over.
  bool caught_up(Step step) const;
  // Why it has not finished, if the scheduler is the cause.
  std::string stalled() const;
  bool has_reader() const { return ring_.has_reader(); }
  // Rethrows the exception that ended the thread, if any.
  bool is_broken() const;
  void throw_broken() const;

 private:
  struct ExpectedStep {
    Step step = 0;
    std::vector<WantedSpan> requests;
    std::byte* record = nullptr;
    std::int64_t num_tokens = 0;
    StepFault fault;
  };
  // Steps that were dropped in succession.
  struct Drop {
    std::uint64_t after;  // this many steps
    DropRun steps;
    std::vector<RequestSpan> lost;  // of all of them; adjacent ones are merged
  };
  // Of a request.
  struct Told {
    RequestId request;
    std::uint64_t after;  // this many steps
    std::variant<RequestEnd, Accepted> what;
  };

  void run() noexcept;
  bool do_next(std::unique_lock<std::mutex>& lock);
  void tell(Told told);
  bool told_is_next() const { return !told_.empty() && told_.front().after <= num_kept_; }
  bool drop_is_next() const { return !drops_.empty() && drops_.front().after <= num_kept_; }
  bool step_is_next() const { return num_arrived_ > num_kept_; }
  ExpectedStep& expected(std::uint64_t number) { return steps_[number % steps_.size()]; }

  void keep(const ExpectedStep& step);
  static void add(const RequestSpan& span, std::vector<RequestSpan>& to);
  void lose(const Drop& drop);
  void carry_out(const Told& told);
  void carry_out(RequestId request, RequestEnd how);
  void hand_over(RequestId request);
  std::span<std::byte> acquire();

  const Keeping keeping_;
  ModelShape shape_;
  std::int64_t max_tokens_;
  ChannelProducer ring_;
  RequestCache cache_;
  std::int64_t handed_over_ = 0;  // rows of the next request to end

  mutable std::mutex mutex_;  // for all members below; locked for a few instructions only
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<ExpectedStep> steps_;  // used round-robin: kept <= arrived <= expected <= kept + size
  std::uint64_t num_arrived_ = 0;
  std::uint64_t num_kept_ = 0;
  Step last_kept_ = 0;
  std::deque<Drop> drops_;  // before what is told after as many steps
  std::deque<Told> told_;
  std::string stalled_;
  std::exception_ptr broken_;

  std::thread thread_;
};

}  // namespace moetap
