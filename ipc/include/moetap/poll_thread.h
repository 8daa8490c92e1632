// A thread that takes steps in for a scheduler that blocks elsewhere, and a file descriptor that
// tells an event loop (epoll, asyncio) that some have come.
#pragma once

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/types.h>

#include <memory>

namespace moetap {

struct PollOptions {
  // How often it looks: a step waits at most this long, and so does who sleeps at the descriptor. A
  // look takes about a microsecond, or two for each of several ranks, and the wake-up some five
  // more: at the default about half a percent of a core.
  Milliseconds every{1};

  // If not null: becomes a descriptor that is readable once steps have been taken in, or the worker
  // died, or a call would throw. An eventfd(2), non-blocking: read 8 bytes from it before you look.
  // It is the reader's, and closes with it.
  int* readable = nullptr;
};

// The same end, with poll() called all the time: `Reader reader(poll_in_thread(...))` needs no
// poll(). Its calls exclude each other and the thread, so that any thread may make them; one that
// waits lets nobody else in. Rows may change between any two calls, not only in wait_for() and
// poll(): hold a request's blocks until it has been read (PendingRows), or its rows may be
// clobbered, and say so. While rows are lent no step is taken in. What the thread meets with
// (MismatchError) is thrown by every later call. SystemError if there can be no thread or no
// descriptor; ArgumentError if `every` is below 1 ms or above a second.
std::unique_ptr<SlotReadTransport> poll_in_thread(std::unique_ptr<SlotReadTransport> reader,
                                                  PollOptions options = {});
std::unique_ptr<RequestReadTransport> poll_in_thread(std::unique_ptr<RequestReadTransport> reader,
                                                     PollOptions options = {});

}  // namespace moetap
