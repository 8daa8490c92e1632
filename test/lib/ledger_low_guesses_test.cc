// Steps that were reported to begin before tokens that the request had computed already (H30).
// Either the guess is too low, or the tokens are computed again.
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "test/lib/drafts_world.h"

namespace moetap {
namespace {

using test::kAtOnce;
using test::kDraftSlots;
using test::Tokens;

// Step 1 computes a prompt of 8 tokens.
class LedgerLowGuesses : public test::DraftsWorld {
 protected:
  LedgerLowGuesses() {
    admit(2, 8);
    compute(1, {0, 8}, 2);
  }
  void guess(Step step, TokenRange positions) { ledger.schedule(step, 2, positions); }
  void accept(Step step, std::int64_t num_tokens, const Tokens& accepted, Step moved_as = 20) {
    move_rows(reader, ledger.accept(step, 2, num_tokens, accepted, moved_as), kAtOnce);
  }
  // Of these tokens of these steps.
  static std::string rows(const std::vector<std::pair<Step, Tokens>>& steps) {
    std::string text;
    for (const auto& [step, tokens] : steps) {
      for (const std::int64_t token : tokens) text += fmt::format("{}.{} ", step.value(), token);
    }
    if (!text.empty()) text.pop_back();
    return text;
  }
  // Step 2 really begins at position 8, which was not reported: its rows are not known, and the
  // prompt keeps its own.
  void expect_untold() {
    land(2, {8, 13}, 2);
    accept(2, 14, {0, 1, 4, 2, 3});
    EXPECT_EQ(read(ledger.finish(2, 14)),
              rows({{1, prompt}}) + " missing missing missing missing missing");
  }
  const Tokens prompt{0, 1, 2, 3, 4, 5, 6, 7};
};
INSTANTIATE_TEST_SUITE_P(BlockSize, LedgerLowGuesses, testing::Values(1, 2, 3, 16),
                         testing::PrintToStringParamName());

TEST_P(LedgerLowGuesses, OneInThePromptIsNoPrefill) {
  guess(2, {6, 11});
  ledger.accept(1, 2, 9);
  expect_untold();
}

TEST_P(LedgerLowGuesses, NorIsItIfAllItsTokensWereKnownAtFirst) {
  guess(2, {5, 8});
  guess(2, {6, 11});
  ledger.accept(1, 2, 9);
  expect_untold();
}

TEST_P(LedgerLowGuesses, NorIsItIfItHadNoDraftsAtFirst) {
  ledger.accept(1, 2, 9);
  guess(2, {8, 9});
  guess(2, {6, 11});
  expect_untold();
}

// The engine does not accept steps without drafts.
TEST_P(LedgerLowGuesses, NorIsItIfTheStepBeforeItIsNotAccepted) {
  guess(2, {6, 11});
  expect_untold();
}

// As no step computes tokens that stand, whatever is reported.
TEST_P(LedgerLowGuesses, KnownTokensHaveTheirRowsMeanwhile) {
  ledger.accept(1, 2, 9);
  guess(2, {8, 11});
  guess(3, {6, 11});
  EXPECT_EQ(read(ledger.rows_since(2, 0)), rows({{1, prompt}}));
  EXPECT_EQ(read(ledger.abort(2)), rows({{1, prompt}}));
}

// Its tokens seemed to be known, but one of them moves, or fewer of them are there.
TEST_P(LedgerLowGuesses, AStepThatIsNotReportedAgainIsAcceptedAllTheSame) {
  guess(2, {3, 6});
  guess(3, {4, 7});
  land(2, {8, 11}, 2);
  ledger.accept(1, 2, 9);
  accept(2, 11, {0, 2});
  land(3, {10, 13}, 2);
  accept(3, 12, {0});
  EXPECT_EQ(read(ledger.rows_since(2, 0)).substr(0, 15), rows({{1, {0, 1, 2, 3}}}));
  EXPECT_TRUE(read(ledger.finish(2, 12)).ends_with("1.7 missing missing missing"));
}

// Also if all the tokens of a guess are known, so that none of them looks like a draft.
TEST_P(LedgerLowGuesses, CorrectedStepsHaveAllTheirRows) {
  Step step = 2;
  for (const TokenRange low : {TokenRange{2, 4}, {5, 8}, {6, 11}, {7, 10}}) {
    for (const bool accepted_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << low.start << ", " << accepted_first);
      (void)ledger.abort(2);
      admit(2, 8);
      const Step first = step;
      step += 5;
      compute(first, {0, 8}, 2);
      if (accepted_first) ledger.accept(first, 2, 9);
      for (std::int64_t i = 1; i <= 3; ++i) guess(first + i, low);
      if (!accepted_first) ledger.accept(first, 2, 9);
      guess(first + 1, {8, 11});
      land(first + 1, {8, 11}, 2);
      guess(first + 3, {10, 13});
      accept(first + 1, 11, {0, 2}, first + 4);
      guess(first + 2, {10, 13});
      land(first + 2, {10, 13}, 2);
      accept(first + 2, 12, {0});
      guess(first + 3, {11, 14});
      land(first + 3, {11, 14}, 2);
      accept(first + 3, 14, {0, 1});
      EXPECT_EQ(
          read(ledger.rows_since(2, 0)),
          rows({{first, prompt}, {first + 1, {0, 2}}, {first + 2, {0}}, {first + 3, {0, 1}}}));
    }
  }
}

// The first computation of the prompt failed, and no call says so.
TEST_P(LedgerLowGuesses, APromptMayBeComputedAgainInParts) {
  guess(2, {0, 3});
  guess(3, {3, 8});
  guess(4, {8, 11});
  land(2, {0, 3}, 2);
  land(3, {3, 8}, 2);
  land(4, {8, 11}, 2);
  ledger.accept(2, 2, 8);
  ledger.accept(3, 2, 9);
  accept(4, 11, {0, 2});
  EXPECT_EQ(read(ledger.finish(2, 11)), rows({{2, {0, 1, 2}}, {3, {0, 1, 2, 3, 4}}, {4, {0, 2}}}));
}

TEST_P(LedgerLowGuesses, SoMayTokensThatWereSampled) {
  ledger.accept(1, 2, 9);
  compute(2, {8, 11}, 2);
  accept(2, 12, {0, 1, 2});
  guess(3, {6, 12});
  land(3, {6, 12}, 2);
  ledger.accept(3, 2, 13);
  EXPECT_EQ(read(ledger.finish(2, 13)), rows({{1, {0, 1, 2, 3, 4, 5}}, {3, {0, 1, 2, 3, 4, 5}}}));
}

// The engine drops what a step in flight computed, and does not say so.
TEST_P(LedgerLowGuesses, AlsoWithDraftsInFlight) {
  ledger.accept(1, 2, 9);
  compute(2, {8, 11}, 2);
  accept(2, 12, {0, 1, 2});
  guess(3, {11, 14});
  guess(4, {9, 12});
  EXPECT_EQ(ledger.rows_since(2, 9).windows, (std::vector<StepWindow>{{4, 4}, {4, 4}}));
  land(3, {11, 14}, 2);
  land(4, {9, 12}, 2);
  ledger.accept(4, 2, 13);
  EXPECT_EQ(read(ledger.finish(2, 13)), rows({{1, prompt}, {2, {0}}, {4, {0, 1, 2}}}));
}

// Of a chain each row is that of its position, drafts or not.
TEST_P(LedgerLowGuesses, SoMayBothWithDraftsThatFormAChain) {
  Ledger chain(kDraftSlots / GetParam(), GetParam(), Drafts::chain);
  chain.admit({.request = 2, .num_tokens = 8, .placement = {blocks_of(2), 0}});
  chain.schedule(1, 2, {0, 8});
  chain.accept(1, 2, 9);
  chain.schedule(2, 2, {3, 11});
  land(2, {3, 11}, 2);
  chain.accept(2, 2, 11);
  EXPECT_EQ(read(chain.finish(2, 11)), rows({{1, {0, 1, 2}}, {2, {0, 1, 2, 3, 4, 5, 6}}}));
}

// Rejected drafts were not computed after all: steps without drafts, which need no accept(), do not
// go back over them.
TEST_P(LedgerLowGuesses, StepsAfterRejectedDraftsAreNone) {
  ledger.accept(1, 2, 9);
  compute(2, {8, 11}, 2);
  accept(2, 10, {0});
  compute(3, {9, 10}, 2);
  compute(4, {10, 11}, 2);
  compute(5, {11, 14}, 2);
  accept(5, 14, {0, 2});
  EXPECT_EQ(read(ledger.finish(2, 14)),
            rows({{1, prompt}, {2, {0}}, {3, {0}}, {4, {0}}, {5, {0, 2}}}));
}

// Others computed the prompt, or its keys and values were loaded: a run's first step begins at the
// last token that is known.
TEST_P(LedgerLowGuesses, ARunMayBeginWithItsLastToken) {
  ledger.preempt(2);
  ledger.resume(2, {blocks_of(2), 0});
  compute(2, {7, 10}, 2);
  accept(2, 10, {0, 1});
  EXPECT_TRUE(read(ledger.rows_since(2, 0)).ends_with(" missing " + rows({{2, {0, 1}}})));
  (void)ledger.abort(2);
  if (8 % GetParam() == 0) return;  // else it would write to a block that is shared
  admit(2, 8);
  compute(3, {0, 8}, 2);
  (void)ledger.abort(2);
  ledger.admit({.request = 2, .num_tokens = 8, .placement = {blocks_of(2), 8}});
  compute(4, {7, 10}, 2);
  accept(4, 10, {0, 2});
  EXPECT_EQ(read(ledger.finish(2, 10)), rows({{3, {0, 1, 2, 3, 4, 5, 6}}, {4, {0, 2}}}));
}

// A client that sends its prompt in parts: its tokens are known before they are computed.
TEST_P(LedgerLowGuesses, TokensThatCameInLaterAreNoDrafts) {
  ledger.accept(1, 2, 14);
  guess(2, {8, 11});
  guess(3, {11, 14});
  land(2, {8, 11}, 2);
  land(3, {11, 14}, 2);
  ledger.accept(2, 2, 14);
  ledger.accept(3, 2, 15);
  EXPECT_EQ(read(ledger.finish(2, 15)), rows({{1, prompt}, {2, {0, 1, 2}}, {3, {0, 1, 2}}}));
}

}  // namespace
}  // namespace moetap
