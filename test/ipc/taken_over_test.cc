// A reader that comes while a new worker takes the name of a dead one.
#include <moetap/error.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <new>
#include <string>
#include <string_view>

#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "test/injection/injection.h"
#include "test/ipc/message_of.h"
#include "test/ipc/segment_test.h"

namespace moetap {
namespace {

class TakenOver : public test::SegmentTest {
 protected:
  ~TakenOver() override { injection::on_point({}); }

  Segment make() const {
    Segment segment = Segment::create(name, bytes);
    (new (segment.bytes().data()) ShmControl)->head.publish(endpoint, kShmMagic, kShmVersion);
    return segment;
  }
  Segment attach_now() const {
    Endpoint hasty = endpoint;
    hasty.timeout = Milliseconds(0);
    return attach(name, bytes, hasty, kShmMagic, kShmVersion);
  }

  const std::size_t bytes = native_bytes(endpoint);
};

TEST_F(TakenOver, H23NoReaderAttachesToWhatTheNewWorkerIsAboutToRemove) {
  test::ChildProcess dead([&] {
    const Segment segment = make();
    EXPECT_NO_THROW(attach_now());
    _exit(HasFailure() ? 1 : 0);
  });
  ASSERT_EQ(dead.join(), 0);
  int refused = 0;
  injection::on_point([&](std::string_view point) {
    if (point != "create claimed" && point != "create replaces") return;
    const std::string text = test::message_of<TimeoutError>([&] { attach_now(); });
    refused += static_cast<int>(!text.empty());
  });
  const Segment next = make();
  injection::on_point({});
  EXPECT_EQ(refused, 3);  // twice at the dead one's, then at its own before it is made
  EXPECT_NO_THROW(attach_now());
}

}  // namespace
}  // namespace moetap
