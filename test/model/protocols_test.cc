// Exhaustive: every order in which the processors may carry out small instances of our protocols.
#include "test/model/protocols.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>

namespace moetap::model {
namespace {

constexpr Model kModels[] = {Model::x86_tso, Model::arm64, Model::language};
constexpr std::string_view kModelNames[] = {"x86-TSO", "arm64", "language"};

std::string model_name(Model model) {
  return std::string(kModelNames[static_cast<std::size_t>(model)]);
}

std::string how(const Outcome& outcome) {
  std::string text;
  for (const std::string& step : outcome.wrong) text += step + '\n';
  return text;
}

// Whether any model shows that something is wrong.
template <class Programs>
bool found(const Programs& programs, const std::vector<Value>& initial = {}) {
  return std::ranges::any_of(
      kModels, [&](Model model) { return !explore(programs, model, initial).holds(); });
}

TEST(RingModel, EveryRecordArrivesAndNobodySleepsForever) {
  for (const Model model : kModels) {
    for (const auto& [depth, records] : {std::pair(1, 3), std::pair(2, 5), std::pair(3, 5)}) {
      for (const Waiting waiting : {Waiting::spins, Waiting::sleeps}) {
        const Outcome outcome = explore(ring(depth, records, waiting), model);
        EXPECT_TRUE(outcome.holds()) << model_name(model) << '\n' << how(outcome);
        std::cout << "ring of " << depth << ", " << records << " records, "
                  << (waiting == Waiting::spins ? "spinning, " : "sleeping, ") << model_name(model)
                  << ": " << outcome.states << " states\n";
      }
    }
  }
}

TEST(RingModel, EveryChangeIsFound) {
  for (const RingChange change : kRingChanges) {
    EXPECT_TRUE(found(ring(1, 2, Waiting::spins, change)) ||
                found(ring(1, 2, Waiting::sleeps, change)))
        << name(change);
  }
}

TEST(MarkModel, WhatIsTakenForARecordWasWrittenAsThatOne) {
  for (const Model model : kModels) {
    const Outcome outcome = explore(marks(), model);
    EXPECT_TRUE(outcome.holds()) << model_name(model) << '\n' << how(outcome);
    std::cout << "marks, " << model_name(model) << ": " << outcome.states << " states\n";
  }
}

TEST(MarkModel, EveryChangeIsFound) {
  for (const MarkChange change : kMarkChanges) EXPECT_TRUE(found(marks(change))) << name(change);
}

TEST(StampModel, ARowIsOfTheStepThatItsStampNames) {
  for (const Model model : kModels) {
    const Outcome outcome = explore(stamps(), model, stamps_initial());
    EXPECT_TRUE(outcome.holds()) << model_name(model) << '\n' << how(outcome);
    std::cout << "stamps, " << model_name(model) << ": " << outcome.states << " states\n";
  }
}

// A writer that dies leaves a row that is missing or whole, wherever it dies.
TEST(StampModel, ADeadWriterLeavesNoTornRow) {
  for (int lives_for = 0; lives_for <= stamp_writer_operations(); ++lives_for) {
    for (const Model model : kModels) {
      const Outcome outcome = explore(stamps(lives_for), model, stamps_initial());
      EXPECT_TRUE(outcome.holds()) << lives_for << '\n' << how(outcome);
    }
  }
}

TEST(StampModel, EveryChangeIsFound) {
  for (const StampChange change : kStampChanges) {
    bool any = found(stamps(kLives, change), stamps_initial());
    for (int lives_for = 0; lives_for <= stamp_writer_operations(); ++lives_for) {
      any = any || found(stamps(lives_for, change), stamps_initial());
    }
    EXPECT_TRUE(any) << name(change);
  }
}

TEST(NoteModel, WhatIsTakenForANoteWasWrittenAsOne) {
  for (const Model model : kModels) {
    const Outcome outcome = explore(note(), model);
    EXPECT_TRUE(outcome.holds()) << model_name(model) << '\n' << how(outcome);
  }
}

TEST(NoteModel, EveryChangeIsFound) {
  for (const NoteChange change : kNoteChanges) EXPECT_TRUE(found(note(change))) << name(change);
}

}  // namespace
}  // namespace moetap::model
