// What a worker that does not wait for a full ring (OnFull::drop) says of the steps that it dropped
// since it last handed over a record. Those before that are told in the record itself.
#pragma once

#include <moetap/channel.h>

#include <atomic>
#include <cstdint>
#include <optional>

namespace moetap {

// In shared memory, in plain words, read and written as LeaseNote is. One writer, who may die in
// the middle.
class DropNote {
 public:
  struct Drops {
    std::uint64_t after = 0;  // records that come before them
    DropRun run;
  };

  void write(const Drops& drops) noexcept;
  // Nothing while it is being written. Whatever is in the memory, this ends.
  std::optional<Drops> read() const;

 private:
  std::atomic<std::uint64_t> version_{0};  // odd: being written
  std::atomic<std::uint64_t> after_{0};
  std::atomic<std::uint64_t> first_{0};
  std::atomic<std::uint64_t> last_{0};
  std::atomic<std::uint64_t> total_{0};
  std::atomic<std::uint64_t> given_up_{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace moetap
