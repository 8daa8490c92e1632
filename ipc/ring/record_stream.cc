#include "ipc/ring/record_stream.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include "ipc/internal/names.h"
#include "lib/internal/number_format.h"
#include "lib/internal/text.h"

namespace moetap {

RecordStream::RecordStream(const Endpoint& endpoint)
    : endpoint_(endpoint), name_(ring_name(endpoint)), channel_(endpoint) {}

void RecordStream::throw_unexpected(const Item& item, const char* remedy) const {
  throw MismatchError(fmt::format("{} holds a record of kind {}: {}", name_,
                                  static_cast<std::uint32_t>(item.descriptor.kind), remedy));
}

void RecordStream::throw_timeout(const std::string& what, Milliseconds timeout) const {
  if (!channel_.producer_alive()) {
    throw TimeoutError(
        fmt::format("the worker of {} died or ended before {} came; the last step that came is {}: "
                    "start the worker and "
                    "a new reader",
                    name_, what, outcomes_.last()));
  }
  throw TimeoutError(fmt::format(
      "{} has not come from {}{}; the last step that came is {}, and the worker lives: is it still "
      "in its forward pass, or was the step never published?",
      what, name_, detail::within(timeout), outcomes_.last()));
}

}  // namespace moetap
