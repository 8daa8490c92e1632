#include <moetap/error.h>
#include <moetap/poll_thread.h>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/internal/system_limits.h"
#include "ipc/system/fork_guard.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

// An eventfd, or none.
class Readable {
 public:
  explicit Readable(bool wanted) {
    if (!wanted) return;
    fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd_ < 0) {
      throw SystemError(errno, fmt::format("cannot make the descriptor of a reader's thread{}",
                                           limit_on_open(errno)));
    }
  }
  Readable(const Readable&) = delete;
  Readable& operator=(const Readable&) = delete;
  ~Readable() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  // Fails only if the counter is at its maximum, and so readable.
  void set() const {
    const std::uint64_t one = 1;
    if (fd_ >= 0 && write(fd_, &one, sizeof one) < 0) return;
  }

 private:
  int fd_ = -1;
};

// The common part of both kinds of readers.
template <class Transport>
class Polled : public Transport {
 public:
  Polled(std::unique_ptr<Transport> reader, const PollOptions& options)
      : reader_(std::move(reader)), every_(options.every), readable_(options.readable != nullptr) {
    if (!reader_) throw ArgumentError("poll_in_thread() needs a reader, given is null");
    if (every_ < Milliseconds(1) || every_ > std::chrono::seconds(1)) {
      throw ArgumentError(fmt::format(
          "poll_in_thread(): every is {} ms, but must be 1 to 1000: a worker's ring is full after "
          "ring_depth steps",
          every_.count()));
    }
    thread_->thread = start_thread("a reader", [this] { run(); });
    if (options.readable != nullptr) *options.readable = readable_.fd();
  }
  ~Polled() override {
    // A forked child has no copy of the thread. Destroying either of these would wait for its end.
    if (!maker_.is_this_process()) {
      static_cast<void>(thread_.release());
      return;
    }
    {
      const std::lock_guard lock(thread_->mutex);
      stop_ = true;
    }
    thread_->wake.notify_one();
    thread_->thread.join();
  }

  const ModelShape& shape() const override { return reader_->shape(); }
  Step poll() override {
    return with_reader([](Transport& r) { return r.poll(); });
  }
  void wait_for(Step step, Milliseconds timeout) override {
    with_reader([&](Transport& r) { r.wait_for(step, timeout); });
  }
  bool worker_alive() override {
    return with_reader([](Transport& r) { return r.worker_alive(); });
  }
  DroppedSteps dropped() override {
    return with_reader([](Transport& r) { return r.dropped(); });
  }

 protected:
  template <class Call>
  auto with_reader(Call&& call) {
    maker_.require("the thread that polls a reader");
    const std::lock_guard lock(thread_->mutex);
    if (broken_) std::rethrow_exception(broken_);
    return call(*reader_);
  }
  const Transport& reader() const { return *reader_; }

 private:
  void run() noexcept {
    std::unique_lock lock(thread_->mutex);
    Step seen = 0;
    bool alive = true;
    try {
      while (!stop_) {
        const bool lives = reader_->worker_alive();  // checked before its last steps are taken in
        const Step last = MOETAP_OFF("H36 a thread that polls") ? seen : reader_->poll();
        if (last != seen || lives != alive) readable_.set();
        seen = last;
        alive = lives;
        thread_->wake.wait_for(lock, every_, [this] { return stop_; });
      }
    } catch (...) {
      broken_ = std::current_exception();
      readable_.set();
    }
  }

  std::unique_ptr<Transport> reader_;  // under the lock
  const Milliseconds every_;
  const Readable readable_;
  Maker maker_;
  bool stop_ = false;
  std::exception_ptr broken_;
  struct Thread {
    std::mutex mutex;
    std::condition_variable wake;
    std::thread thread;
  };
  std::unique_ptr<Thread> thread_ = std::make_unique<Thread>();
};

class PolledSlots final : public Polled<SlotReadTransport> {
 public:
  using Polled::Polled;

  std::int64_t num_slots() const override { return reader().num_slots(); }
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override {
    with_reader([&](SlotReadTransport& r) { r.read(slots, windows, rows, states); });
  }
  void stamps(std::span<const Slot> slots, std::span<Step> written) override {
    with_reader([&](SlotReadTransport& r) { r.stamps(slots, written); });
  }
  std::optional<Lease> lend(std::span<const Slot> slots, std::span<const StepWindow> windows,
                            std::span<const std::byte*> rows, std::span<RowState> states,
                            const std::string& holder) override {
    return with_reader(
        [&](SlotReadTransport& r) { return r.lend(slots, windows, rows, states, holder); });
  }
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override {
    with_reader([&](SlotReadTransport& r) { r.put(step, slots, rows, states); });
  }
};

class PolledRequests final : public Polled<RequestReadTransport> {
 public:
  using Polled::Polled;

  void take(RequestId request, TokenRange range, std::span<std::byte> rows,
            std::span<RowState> states, Milliseconds timeout) override {
    with_reader([&](RequestReadTransport& r) { r.take(request, range, rows, states, timeout); });
  }
};

}  // namespace

std::unique_ptr<SlotReadTransport> poll_in_thread(std::unique_ptr<SlotReadTransport> reader,
                                                  PollOptions options) {
  return std::make_unique<PolledSlots>(std::move(reader), options);
}

std::unique_ptr<RequestReadTransport> poll_in_thread(std::unique_ptr<RequestReadTransport> reader,
                                                     PollOptions options) {
  return std::make_unique<PolledRequests>(std::move(reader), options);
}

}  // namespace moetap
