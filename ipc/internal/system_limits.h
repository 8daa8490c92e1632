// Explains which limit of the system a call has reached, its value, and how to raise it.
#pragma once

#include <moetap/error.h>

#include <fmt/format.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "lib/internal/export.h"

namespace moetap {

// For the errno of a call that opens a file; "" if no limit explains it, else a sentence that
// starts with ": ".
std::string limit_on_open(int error);

// As above, for a call that creates a file in `directory`.
std::string limit_on_create(int error, const std::string& directory);

// For the errno of an mmap(2) of so many bytes, of shared or private memory.
enum class Mapped : std::uint8_t { shared, own };
MOETAP_INTERNAL_API std::string limit_on_map(int error, std::size_t bytes, Mapped kind);

// Returns the result of allocate(), and turns std::bad_alloc into a SystemError with the limit. For
// memory whose size depends on options. `what` begins the message.
template <std::invocable Allocate>
auto allocated(std::string_view what, std::size_t bytes, Allocate&& allocate) {
  try {
    return allocate();
  } catch (const std::bad_alloc&) {
    throw SystemError(ENOMEM, fmt::format("{} gets no {} bytes of memory{}", what, bytes,
                                          limit_on_map(ENOMEM, bytes, Mapped::own)));
  }
}

// For a thread that could not be created.
MOETAP_INTERNAL_API std::string limit_on_thread();

// Starts a thread. SystemError with the limit if it cannot be created. `what` begins the message,
// e.g. "the host device's stream".
template <std::invocable Run>
std::thread start_thread(std::string_view what, Run&& run) {
  try {
    return std::thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    throw SystemError(error.code().value(),
                      fmt::format("{} gets no thread{}", what, limit_on_thread()));
  }
}

// SystemError(EFBIG) if a file of so many bytes is not allowed: exceeding RLIMIT_FSIZE would kill
// the process with a signal. `what` begins the message.
void require_file_size(std::size_t bytes, const std::string& what);

}  // namespace moetap
