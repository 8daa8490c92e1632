// Random histories in which blocks of one token change places (H8, H30), while steps are guessed
// too low, rows are put and blocks move: a row that is present is that of its position's token.
#include <moetap/error.h>
#include <moetap/ledger.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace moetap {
namespace {

// Token `token` of a step, or a row that was put for a position.
struct Row {
  Step step = 0;
  std::int64_t token = 0;
  std::int64_t put_for = -1;
};

struct Flight {
  Step step;
  std::int64_t start;
  std::int64_t count;
  bool is_reported = true;  // where it begins
};

class BlocksHistory {
 public:
  explicit BlocksHistory(std::uint64_t seed) : random_(seed), num_tokens_(1 + up_to(3)) {
    ledger_.admit(
        {.request = 1, .num_tokens = num_tokens_, .placement = {new_blocks(num_tokens_), 0}});
    compute({++step_, 0, num_tokens_}, {});
    for (std::int64_t i = 0; i < num_tokens_; ++i) tokens_.push_back({step_, i});
    ledger_.accept(step_, 1, ++num_tokens_);
  }

  void run() {
    for (int round = 0; round < 6; ++round) {
      for (std::int64_t depth = 1 + up_to(2); std::ssize(flights_) < depth;) schedule();
      for (std::int64_t changes = up_to(3); changes > 0; --changes) put_or_move();
      accept();
      check();
    }
  }
  int num_present = 0;

 private:
  std::int64_t up_to(std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random_);
  }
  std::vector<BlockId> new_blocks(std::int64_t count) {
    std::vector<BlockId> added;
    while (std::ssize(added) < count) added.emplace_back(next_++);
    blocks_.insert(blocks_.end(), added.begin(), added.end());
    return added;
  }
  Slot slot(std::int64_t position) const {
    return first_slot(blocks_[static_cast<std::size_t>(position)], 1);
  }

  void compute(const Flight& flight, const std::vector<BlockId>& added) {
    const auto [step, start, count, is_reported] = flight;
    ledger_.schedule(step, 1, {start, start + count}, added);
    for (std::int64_t i = 0; i < count; ++i) rows_[{slot(start + i), step}] = {step, i};
  }
  void correct() {
    for (Flight& flight : flights_) {
      if (!flight.is_reported) compute(flight, {});
      flight.is_reported = true;
    }
  }
  void schedule() {
    const std::int64_t start =
        flights_.empty() ? num_tokens_ - 1 : flights_.back().start + flights_.back().count;
    Flight flight{++step_, start, 1 + up_to(3)};
    const std::int64_t end = start + flight.count;
    const auto added = new_blocks(std::max<std::int64_t>(0, end - std::ssize(blocks_)));
    flight.is_reported = flights_.empty() || up_to(1) == 0;
    if (flight.is_reported) {
      compute(flight, added);
    } else {
      const std::int64_t low = up_to(start - 1);
      ledger_.schedule(step_, 1, {low, low + 1 + up_to(flight.count - 1)}, added);
    }
    flights_.push_back(flight);
  }

  void put_or_move() {
    if (up_to(2) == 0) {
      const std::int64_t position = up_to(num_tokens_ - 1);
      (void)ledger_.fill(++step_, 1, {position, position + 1});
      rows_[{slot(position), step_}] = {.put_for = position};
      return;
    }
    std::int64_t end = std::ssize(blocks_);  // a step writes where its blocks were
    for (const Flight& flight : flights_) {
      if (!flight.is_reported) end = std::min(end, flight.start);
    }
    const std::int64_t position = up_to(end - 1);
    BlockId& block = blocks_[static_cast<std::size_t>(position)];
    const BlockMove move{block, BlockId(next_++)};
    const MovePlan plan = up_to(1) == 0 ? ledger_.copy(++step_, 1, move)
                                        : ledger_.move(++step_, std::vector<BlockMove>{move});
    for (std::size_t i = 0; i < plan.from.size(); ++i) {
      const auto moved = rows_.find({plan.from[i], plan.windows[i].first});
      if (moved != rows_.end()) rows_[{plan.to[i], step_}] = moved->second;
    }
    block = move.to;
  }

  // The first token of the oldest step and some of its drafts, in any order.
  void accept() {
    const auto [step, start, count, is_reported] = flights_.front();
    std::vector<std::int64_t> accepted;
    for (std::int64_t i = 0; i < count; ++i) accepted.push_back(i);
    if (up_to(1) == 0) std::shuffle(accepted.begin() + 1, accepted.end(), random_);
    accepted.resize(static_cast<std::size_t>(1 + up_to(count - 1)));
    num_tokens_ = start + std::ssize(accepted) + 1;
    try {
      ledger_.accept_blocks(step, 1, num_tokens_, accepted);
    } catch (const StateError&) {  // a guess lies where blocks change places, or is this step's
      correct();
      ledger_.accept_blocks(step, 1, num_tokens_, accepted);
    }
    flights_.pop_front();

    const std::int64_t end = start + count;
    const std::int64_t removed = count - std::ssize(accepted);
    std::vector<BlockId> kept;
    for (const std::int64_t token : accepted) {
      kept.push_back(blocks_[static_cast<std::size_t>(start + token)]);
      tokens_.push_back({step, token});
    }
    blocks_.erase(std::ranges::copy(kept, blocks_.begin() + start).out, blocks_.begin() + end);
    for (Flight& later : flights_) later.start -= removed;
  }

  void check() {
    const RowPlan plan = ledger_.rows_since(1, 0);
    ASSERT_EQ(plan.range.end, num_tokens_ - 1);
    for (std::int64_t position = 0; position < plan.range.end; ++position) {
      const auto i = static_cast<std::size_t>(position);
      if (std::ranges::any_of(plan.verdicts, [position](const RowPlan::Verdict& verdict) {
            return verdict.positions.start <= position && position < verdict.positions.end;
          })) {
        continue;
      }
      const auto found = rows_.find({plan.slots[i], plan.windows[i].first});
      if (found == rows_.end()) continue;  // a guess: the step wrote elsewhere
      ++num_present;
      const Row& row = found->second;
      const bool is_its = row.step == 0
                              ? row.put_for == position
                              : row.step == tokens_[i].step && row.token == tokens_[i].token;
      EXPECT_TRUE(is_its) << "position " << position << ", slot " << plan.slots[i] << ", step "
                          << plan.windows[i].first;
    }
  }

  std::mt19937_64 random_;
  Ledger ledger_{400, 1};
  std::int64_t num_tokens_;
  std::int64_t next_ = 0;
  Step step_ = 0;
  std::vector<BlockId> blocks_;  // by position
  std::vector<Row> tokens_;      // that stand, by position
  std::deque<Flight> flights_;
  std::map<std::pair<Slot, Step>, Row> rows_;
};

TEST(LedgerDraftBlocksRandom, H30EachPresentRowIsThatOfItsPositionsToken) {
  int num_present = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    BlocksHistory history(seed);
    history.run();
    if (HasFailure()) break;
    num_present += history.num_present;
  }
  EXPECT_GT(num_present, 50'000);
}

}  // namespace
}  // namespace moetap
