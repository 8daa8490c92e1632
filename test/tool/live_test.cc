// Looks at segments that change meanwhile: what is sound is never called damaged.
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "test/ipc/step_records.h"
#include "test/tool/tool_test.h"
#include "tool/failure.h"
#include "tool/inspection.h"
#include "tool/live_segment.h"
#include "tool/selection.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::Signal;
using test::Slots;

using Live = test::ToolTest;

SegmentInfo info_of(const std::string& name) {
  const auto found = tool::select_segments(name);
  if (found.size() != 1) throw std::runtime_error("no one segment " + name);
  return found[0];
}

// Both ends work as fast as they can, through rings of any depth.
TEST_F(Live, ARingAtWorkIsNeverCalledDamaged) {
  for (const int depth : {1, 2, 4}) {
    endpoint.ring_depth = depth;
    Signal made;
    ChildProcess worker([&] {
      ChannelProducer producer(endpoint);
      made.raise();
      for (Step step = 1;; ++step) {
        (void)producer.acquire();
        producer.commit(test::describe(Descriptor::Kind::failed_step, step, 0));
      }
    });
    made.wait();
    Signal attached;
    ChildProcess scheduler([&] {
      ChannelConsumer consumer(endpoint);
      attached.raise();
      while (consumer.wait(test::kPatience)) {
        while (consumer.peek() != nullptr) consumer.release();
      }
    });
    attached.wait();
    const SegmentInfo info = info_of(ring_name(endpoint));
    tool::LiveSegment watched(info);
    Step last = 0;
    for (int i = 0; i < 20'000; ++i) {
      const tool::Inspection found = tool::inspect(info);
      ASSERT_EQ(found.problem, "") << "look " << i << ", depth " << depth;
      ASSERT_LE(found.waiting, static_cast<std::uint64_t>(depth));
      ASSERT_GE(found.last_step, last) << "look " << i << ", depth " << depth;
      last = found.last_step;
      if (i % 100 == 0) {
        ASSERT_EQ(watched.look().problem, "");
      }
    }
    EXPECT_GT(last, Step(0));
    worker.kill();
    scheduler.kill();
  }
}

TEST_F(Live, OfManyNewRowsSomeAreReadFromAllOver) {
  endpoint.num_slots = 10'000;
  endpoint.max_tokens = 10'000;
  ShmWriter writer(endpoint);
  tool::LiveSegment watched(info_of(name()));
  Step step = 0;
  for (const auto& [rows, least] :
       {std::pair{100, 100}, {2048, 2048}, {2049, 1024}, {9000, 1024}}) {
    Slots slots(static_cast<std::size_t>(rows));
    std::iota(slots.begin(), slots.end(), Slot(0));
    // The second half's rows hold experts of their own.
    std::vector<std::byte> bytes(slots.size() * endpoint.shape.row_bytes(), std::byte{1});
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end(),
              std::byte{2});
    writer.publish(++step, unmarked(slots), bytes);
    const tool::Activity activity = watched.look();
    EXPECT_EQ(activity.problem, "");
    EXPECT_EQ(activity.rows, static_cast<std::uint64_t>(rows));
    EXPECT_GE(activity.sampled, static_cast<std::uint64_t>(least));
    EXPECT_LE(activity.sampled, tool::LiveSegment::kSample);
    const auto& picks = activity.load.at(0).picks;
    EXPECT_NEAR(static_cast<double>(picks[1]), static_cast<double>(picks[2]), 2 * 2) << rows;
  }
}

TEST_F(Live, ASegmentThatWasRemovedMeanwhileIsNotThere) {
  SegmentInfo info;
  {
    const ShmWriter writer(endpoint);
    info = info_of(name());
  }
  EXPECT_THROW(tool::inspect(info), tool::NotThere);
}

TEST_F(Live, ASegmentThatIsBeingMadeIsNoneYet) {
  SegmentInfo info;
  {
    const ShmWriter writer(endpoint);
    info = info_of(name());
  }
  const Segment next = Segment::create(name(), native_bytes(endpoint));  // its head is not there
  const tool::Inspection found = tool::inspect(info);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.segment.kind, SegmentInfo::Kind::other);
}

TEST_F(Live, ASegmentThatIsMadeMeanwhileIsWhatItHasBecome) {
  SegmentInfo info;
  {
    const Segment early = Segment::create(name(), native_bytes(endpoint));
    info = info_of(name());
    ASSERT_EQ(info.kind, SegmentInfo::Kind::other);
  }
  const ShmWriter writer(endpoint);
  const tool::Inspection found = tool::inspect(info);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.segment.kind, SegmentInfo::Kind::shm);
  EXPECT_TRUE(found.endpoint);
}

}  // namespace
}  // namespace moetap
