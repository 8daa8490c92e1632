// Holds collective operations that a device runs to a time limit: the host that queued them may be
// blocked behind them itself.
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

namespace moetap {

// The library that runs the operations. Both are called with the watch's lock held.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  // Why it cannot go on, or nothing.
  virtual std::optional<std::string> error() = 0;
  // Makes everything that it runs end soon, whatever the other ranks do. Once.
  virtual void abort() noexcept = 0;
};

// A thread that looks every few milliseconds. The first operation that is late, or the first error,
// ends all of them.
class CollectiveWatch {
 public:
  // `who` is in messages: "rank 1 of 4".
  CollectiveWatch(Device& device, CollectiveBackend& backend, Milliseconds limit, std::string who);
  ~CollectiveWatch();  // does not wait for what is running
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  // Calls queue() under the lock and watches what it queued on `stream` (nothing if that records a
  // graph): from when the stream comes to it, it has the limit. Throws as check() before it, and
  // whatever queue() throws, which is the end too.
  void run(Stream& stream, const std::function<void()>& queue);

  // Watches what was queued on `stream` so far: it has the limit from now, or from the end of what
  // was watched before.
  void until_here(Stream& stream);

  // Throws why everything has ended.
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
  Milliseconds limit_;
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
