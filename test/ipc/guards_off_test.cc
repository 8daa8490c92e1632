// Guards that the simulation cannot miss, since it has one thread, no wire layout, and an engine
// that never does what they refuse: what goes wrong while each is switched off.
#include <moetap/error.h>
#include <moetap/poll_thread.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/internal/wire_layout.h"
#include "test/injection/injection.h"
#include "test/ipc/shm_test.h"
#include "test/ipc/step_records.h"
#include "test/lib/drafts_world.h"

namespace moetap {
namespace {

using injection::SwitchedOff;
using Slots = std::vector<Slot>;

// As LedgerDrafts.RequestsThatHadTheSameBlockMayNotShareANumber.
class NumberOfOneOwner : public test::DraftsWorld {};

INSTANTIATE_TEST_SUITE_P(BlockSize, NumberOfOneOwner, testing::Values(1, 2, 3, 16));

TEST_P(NumberOfOneOwner, H30WithoutItARowOfTheNextOwnerPassesForOneOfTheFirst) {
  const SwitchedOff off("H30 a number of one owner");
  const std::int64_t count = 15 / GetParam() + 1;
  const std::int64_t room = count * GetParam();
  test::Blocks blocks = blocks_of(2);
  blocks.resize(static_cast<std::size_t>(count));
  ledger.admit({.request = 2, .num_tokens = room - 3, .placement = {blocks, 0}});
  compute(1, {0, 2});
  compute(1, {0, room - 3}, 2);
  compute(2, {2, 5});
  compute(2, {room - 3, room - 2}, 2);
  ledger.schedule(3, 2, {room - 2, room});
  move_rows(reader, ledger.accept(2, 1, 5, test::Tokens{0, 2}, 4), test::kAtOnce);
  const RowPlan plan = ledger.finish(1, 5);
  ledger.accept(2, 2, room - 1);
  test::Blocks more = blocks_of(1);
  more.resize(static_cast<std::size_t>(5 / GetParam()) + 1);
  ledger.schedule(3, 2, {room - 2, room + 6}, more);
  memory->publish(3, {{slot_of(1, 3), 305}, {slot_of(1, 4), 306}});
  const test::Tokens path{0, 1, 2, 3, 4, 6};
  move_rows(reader, ledger.accept(3, 2, room + 5, path, 4), test::kAtOnce);
  EXPECT_EQ(read(plan), "1.0 1.1 2.0 3.6");
}

// As LedgerDraftBlocks.RefusesToPutRowsOverDrafts.
TEST(PutRows, H30WithoutItTheyPassForThoseOfOtherTokens) {
  const SwitchedOff off("H30 rows of tokens that are not known");
  Ledger ledger(16, 1);
  ledger.admit({.request = 1, .num_tokens = 3, .placement = {test::Blocks{0, 1, 2, 3, 4}, 0}});
  ledger.schedule(1, 1, {0, 2});
  ledger.accept(1, 1, 3);
  ledger.schedule(2, 1, {2, 5});
  (void)ledger.fill(3, 1, {4, 5});
  ledger.accept_blocks(2, 1, 5, test::Tokens{0, 2});
  const RowPlan plan = ledger.finish(1, 5);
  EXPECT_EQ(plan.windows.back().first, Step(3));
  EXPECT_TRUE(plan.verdicts.empty());
}

class GuardsOff : public test::ShmTest {
 protected:
  // Rows of the wire layout as vLLM looks for them.
  bool is_at_its_layer() {
    endpoint.layout = ShmLayout::wire;
    endpoint.shape = ModelShape({1, 3}, 2, 16, 5);
    const std::vector<std::byte> row = test::row_of(endpoint.shape, 1, 0);
    ShmWriter writer(endpoint);
    writer.publish(1, unmarked(Slots{0}), row);
    const Segment segment = Segment::open(buffer_name(endpoint));
    const auto* ids = reinterpret_cast<const WireId*>(segment.bytes().data());
    const auto is_id = [&](std::size_t layer, std::size_t in_row) {
      return ids[2 * layer] == static_cast<int>(row[in_row]) &&
             ids[2 * layer + 1] == static_cast<int>(row[in_row + 1]);
    };
    return is_id(1, 0) && is_id(3, 2);
  }

  // A rank with a ring of one step that publishes three before the other rank comes.
  bool early_rank_goes_on() {
    endpoint.ring_depth = 1;
    const Topology parts{.tp_size = 2, .sp_size = 2, .parts = SequenceParts::published};
    const std::vector<Endpoint> ranks = endpoints_of(endpoint, parts).at(0);
    test::Signal come;
    test::Signal read;
    test::ChildProcess early([&] {
      Endpoint own = ranks[0];
      own.timeout = Milliseconds(500);
      ChannelProducer worker(own);
      const auto publish = [&] {
        for (Step step = 1; step <= 3; ++step) {
          test::send_step(worker, own.shape, step, Slots{Slot(step.value())});
        }
      };
      bool stands = false;
      try {
        publish();
      } catch (const TimeoutError&) {
        stands = true;
      }
      come.raise();
      read.wait();
      _exit(stands ? 1 : 0);
    });
    test::ChildProcess late([&] {
      come.wait();
      const ChannelProducer worker(ranks[1]);
      read.wait();
    });
    const auto reader = make_joined_reader(endpoint, parts, make_device_reader);
    read.raise();
    read.raise();
    EXPECT_EQ(late.join(), 0);
    return early.join() == 0;
  }

  // A worker with a ring of one step whose scheduler does something else.
  bool worker_goes_on() {
    endpoint.ring_depth = 1;
    endpoint.timeout = Milliseconds(500);
    ChannelProducer worker(endpoint);
    const auto reader = poll_in_thread(make_device_reader(endpoint));
    try {
      for (Step step = 1; step <= 3; ++step) {
        test::send_step(worker, endpoint.shape, step, Slots{Slot(step.value())});
      }
    } catch (const TimeoutError&) {
      return false;
    }
    return true;
  }
};

TEST_F(GuardsOff, H33WithoutItRowsAreNotAtTheirLayers) {
  EXPECT_TRUE(is_at_its_layer());
  const SwitchedOff off("H33 indexed by model layer");
  EXPECT_FALSE(is_at_its_layer());
}

TEST_F(GuardsOff, H35WithoutItARankStandsWhileOthersAttach) {
  EXPECT_TRUE(early_rank_goes_on());
  const SwitchedOff off("H35 taken in while others attach");
  EXPECT_FALSE(early_rank_goes_on());
}

TEST_F(GuardsOff, H36WithoutItAWorkerStandsWhileItsSchedulerIsAway) {
  EXPECT_TRUE(worker_goes_on());
  const SwitchedOff off("H36 a thread that polls");
  EXPECT_FALSE(worker_goes_on());
}

}  // namespace
}  // namespace moetap
