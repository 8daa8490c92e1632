// Applies a timeout to collective operations that a device runs: the host that queued them may
// itself be blocked by them.
#pragma once

#include <moetap/collective.h>
#include <moetap/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/internal/export.h"

namespace moetap {

// The library that runs the operations. Both are called with the watch's lock held.
class MOETAP_INTERNAL_API CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  // Why it cannot go on, or nothing.
  virtual std::optional<std::string> error() = 0;
  // Makes all its running operations end soon, whatever the other ranks do. Called once.
  virtual void abort() noexcept = 0;
};

// A thread that checks every few milliseconds. The first late operation, or the first error, ends
// all operations.
class MOETAP_INTERNAL_API CollectiveWatch {
 public:
  // `who` names this rank in messages: "rank 1 of 4".
  CollectiveWatch(Device& device, CollectiveBackend& backend, Milliseconds timeout,
                  std::string who);
  ~CollectiveWatch();  // does not wait for running operations
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  // Calls queue() under the lock and watches what it queued on `stream` (nothing if the stream
  // records a graph). The timeout starts when the stream reaches that work. First throws as
  // check(). An exception of queue() is passed on, and ends all operations too.
  void run(Stream& stream, const std::function<void()>& queue);

  // Watches the work queued on `stream` so far. The timeout starts now, or at the end of the work
  // watched before, if that is later.
  void until_here(Stream& stream);

  // Throws the reason if all operations have been ended.
  void check();

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    std::unique_ptr<Event> begin;  // null: begins when it is the oldest
    std::unique_ptr<Event> end;
    std::optional<Clock::time_point> begun;
  };

  std::unique_ptr<Event> take_event();
  void look_all_the_time();
  void look();
  void rethrow() const;  // with the lock held
  void fail(std::exception_ptr why);

  Device& device_;
  CollectiveBackend& backend_;
  Milliseconds timeout_;
  std::string who_;

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::deque<Watched> watched_;
  std::vector<std::unique_ptr<Event>> spare_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace moetap
