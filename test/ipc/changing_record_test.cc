// Another process changes a record while the worker looks whether it is good.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "lib/internal/step_record.h"
#include "test/ipc/child_process.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using Clock = std::chrono::steady_clock;
using test::ChildProcess;
using test::SharedObject;

constexpr MarkedSlot kFar(Slot(std::int64_t{1} << 40));  // no memory of ours is there

// Until it is killed: the slot is `good` and kFar by turns, each for a while.
[[noreturn]] void flip(MarkedSlot& slot, MarkedSlot good) {
  const std::atomic_ref shared(slot);
  for (;;) {
    for (const MarkedSlot value : {kFar, good}) {
      shared.store(value, std::memory_order_relaxed);
      for (int i = 0; i < 200; ++i) shared.load(std::memory_order_relaxed);
    }
  }
}

// A bad slot that was found, and is not found again when it is to be named, is a fault all the
// same.
TEST(ChangingRecord, AFaultThatIsGoneWhenItIsNamedIsAFault) {
  const Endpoint endpoint = test::test_endpoint();
  std::vector<Slot> slots(2048);  // long enough to change on the way
  std::iota(slots.begin(), slots.end(), Slot{0});
  struct Shared {
    alignas(64) std::array<std::byte, 1 << 16> bytes;
  };
  SharedObject<Shared> shared;
  const StepRecordView record = test::write_record(shared->bytes, endpoint.shape, 1, slots);
  ChildProcess neighbour([&] { flip(record.slots.back(), MarkedSlot(slots.back())); });
  const auto patience = Clock::now() + std::chrono::milliseconds(test::kPatienceMs);
  bool seen = false;
  while (!seen && Clock::now() < patience) {
    const auto fault = fault_of(record, endpoint.shape, 1, std::ssize(slots));
    if (!fault) continue;
    EXPECT_TRUE(fault->find(std::to_string(kFar.slot().value())) != std::string::npos) << *fault;
    seen = fault->find("changed meanwhile") != std::string::npos;
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace moetap
