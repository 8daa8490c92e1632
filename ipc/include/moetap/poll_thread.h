// A thread that takes in steps for a scheduler that blocks elsewhere, and a file descriptor that
// tells an event loop (epoll, asyncio) that steps have arrived.
#pragma once

#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/read_transport.h>
#include <moetap/types.h>

#include <memory>

namespace moetap {

struct PollOptions {
  // The polling interval. A step, and a caller that sleeps on the descriptor, waits at most this
  // long. A poll takes about a microsecond, or two per rank with several ranks; the wake-up takes
  // about five more. At the default this is about half a percent of a core.
  Milliseconds every{1};

  // If not null, receives a descriptor that becomes readable when steps were taken in, when the
  // worker died, or when a call would throw. It is a non-blocking eventfd(2): read 8 bytes from it
  // before you use the reader. The reader owns it and closes it.
  int* readable = nullptr;
};

// The same transport, with a thread that calls poll(): `Reader reader(poll_in_thread(...))` needs
// no poll() calls. Its calls may be made from any thread. They exclude each other and the polling
// thread; a call that waits blocks the others. Rows may change between any two calls, not only in
// wait_for() and poll(). So hold a request's blocks until it is read (PendingRows); otherwise its
// rows may be clobbered, and say so. While rows are lent no step is taken in. An exception in the
// thread (MismatchError) is thrown again by every later call. SystemError if the thread or the
// descriptor cannot be created. ArgumentError if `every` is below 1 ms or above one second.
[[nodiscard]] MOETAP_API std::unique_ptr<SlotReadTransport> poll_in_thread(
    std::unique_ptr<SlotReadTransport> reader, PollOptions options = {});
[[nodiscard]] MOETAP_API std::unique_ptr<RequestReadTransport> poll_in_thread(
    std::unique_ptr<RequestReadTransport> reader, PollOptions options = {});

}  // namespace moetap
