// A reader that was led to another buffer's lock, by what a neighbour wrote into the control block:
// the worker does not wait for it, and writes while it reads.
#include <moetap/error.h>
#include <moetap/file_lock.h>
#include <moetap/readers.h>
#include <moetap/segment.h>
#include <moetap/shm_writer.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "test/injection/injection.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::contains;
using test::message_of;
using Slots = std::vector<Slot>;

class AnotherLock : public test::ShmTest {
 protected:
  ~AnotherLock() override { injection::on_point({}); }

  // Of the name that this buffer's lock file has in another container.
  void lead_to_another_lock() {
    const auto other =
        directory.path() / fmt::format("{}.28ac48aa-5889-4013-a31b-f8989b915c9e-77-1.lock",
                                       buffer_name(endpoint).substr(1));
    control.lock_file = FileLock(other).file();
    std::ranges::fill(control.lock_path, '\0');
    std::ranges::copy(other.string(), control.lock_path);
  }

  void publish(Step step, const Slots& slots) {
    writer.publish(step, slots, test::rows_of(endpoint.shape, step, slots));
  }
  void once_at(std::string_view point, std::function<void()> act) {
    injection::on_point([=, this](std::string_view at) {
      if (!reached && at == point) {
        reached = true;
        act();
      }
    });
  }

  ShmWriter writer{endpoint};
  Segment segment = Segment::open(buffer_name(endpoint));
  ShmControl& control = *reinterpret_cast<ShmControl*>(segment.bytes().data());
  bool reached = false;
};

class AnotherLockAt : public AnotherLock, public testing::WithParamInterface<const char*> {};

TEST_P(AnotherLockAt, ARowThatIsWrittenWhileItIsReadIsAnError) {
  lead_to_another_lock();
  const Slots slots{3, 4, 9};
  publish(1, slots);
  const auto reader = make_shm_reader(endpoint);
  once_at(GetParam(), [&] { publish(2, {4}); });
  const std::string text = message_of<MismatchError>([&] { test::read(*reader, slots); });
  EXPECT_TRUE(reached);
  EXPECT_TRUE(contains(text, "slot 4 ")) << text;
  EXPECT_TRUE(contains(text, "overwritten")) << text;

  EXPECT_EQ(test::state_of(*reader, 4, {2, 2}), RowState::present);
  EXPECT_EQ(test::state_of(*reader, 3, {1, 1}), RowState::present);
}

// The row was being written when the reader came, and is whole when it has looked.
TEST_P(AnotherLockAt, ARowThatBecomesWholeWhileItIsReadIsAnError) {
  lead_to_another_lock();
  publish(1, {4});
  auto* stamps = reinterpret_cast<Step*>(segment.bytes().data() + sizeof(ShmControl));
  stamps[4] = kWriting;
  const auto reader = make_shm_reader(endpoint);
  once_at(GetParam(), [&] { stamps[4] = 1; });
  EXPECT_THROW(test::state_of(*reader, 4), MismatchError);
  EXPECT_TRUE(reached);
}

INSTANTIATE_TEST_SUITE_P(Where, AnotherLockAt, testing::Values("read looked", "read copied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace moetap
