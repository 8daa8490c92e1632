// The machine against what is known of x86-TSO and arm64: the classical litmus tests. What a test
// asks is whether both threads can read the old values (or the new ones, LB).
#include "test/model/machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace moetap::model {
namespace {

using Kind = Op::Kind;

constexpr std::uint8_t kX = 0;
constexpr std::uint8_t kY = 1;
constexpr std::uint8_t kFound = 2;

Op write(std::uint8_t word, Order order = Order::relaxed) {
  return {.kind = Kind::store, .word = word, .value = 1, .order = order};
}
Op read(std::uint8_t word, Order order = Order::relaxed) {
  return {.kind = Kind::load, .word = word, .order = order, .reg = 0};
}
// Counts in kFound if the thread's read found `value`.
void note(Program& program, Value value) {
  const auto at = static_cast<int>(program.size());
  program.push_back({.kind = Kind::branch, .value = value, .reg = 0, .target = at + 2});
  program.push_back({.kind = Kind::jump, .target = at + 3});
  program.push_back({.kind = Kind::add, .word = kFound, .value = 1, .order = Order::seq_cst});
}

// Whether both threads can find `value` in one execution.
bool both_find(Value value, Program first, Program second, Model model) {
  note(first, value);
  note(second, value);
  const auto ends = explore({first, second}, model).ends;
  return std::ranges::any_of(ends, [](const auto& memory) { return memory[kFound] == 2; });
}

// Message passing: the flag is seen, the message is not.
bool message_lost(Order written, Order seen, Model model) {
  return !explore({{write(kX), write(kY, written)},
                   {{.kind = Kind::await, .word = kY, .value = 1, .order = seen},
                    {.kind = Kind::load, .word = kX, .value = 1, .expected = true}}},
                  model)
              .holds();
}

TEST(Machine, PassesMessagesAsTheModelsDo) {
  EXPECT_FALSE(message_lost(Order::relaxed, Order::relaxed, Model::x86_tso));
  EXPECT_TRUE(message_lost(Order::relaxed, Order::acquire, Model::arm64));
  EXPECT_TRUE(message_lost(Order::release, Order::relaxed, Model::arm64));
  for (const Model model : {Model::x86_tso, Model::arm64, Model::language}) {
    EXPECT_FALSE(message_lost(Order::release, Order::acquire, model));
  }
}

TEST(Machine, PassesMessagesThroughFences) {
  const auto lost = [](std::vector<Op> between_writes, std::vector<Op> between_reads) {
    Program writer = {write(kX)};
    writer.insert(writer.end(), between_writes.begin(), between_writes.end());
    writer.push_back(write(kY));
    Program reader = {{.kind = Kind::await, .word = kY, .value = 1}};
    reader.insert(reader.end(), between_reads.begin(), between_reads.end());
    reader.push_back({.kind = Kind::load, .word = kX, .value = 1, .expected = true});
    return !explore({writer, reader}, Model::language).holds();
  };
  const Op acquire{.kind = Kind::fence, .order = Order::acquire};
  const Op release{.kind = Kind::fence, .order = Order::release};
  EXPECT_FALSE(lost({release}, {acquire}));
  EXPECT_TRUE(lost({}, {acquire}));
  EXPECT_TRUE(lost({release}, {}));
  EXPECT_TRUE(lost({acquire}, {acquire})) << "does not keep two stores in order";
  EXPECT_TRUE(lost({release}, {release})) << "does not keep two loads in order";
}

TEST(Machine, BuffersStoresAsTheModelsDo) {
  const auto both_old = [](Order write_order, Order read_order, Model model) {
    return both_find(0, {write(kX, write_order), read(kY, read_order)},
                     {write(kY, write_order), read(kX, read_order)}, model);
  };
  for (const Model model : {Model::x86_tso, Model::arm64, Model::language}) {
    EXPECT_TRUE(both_old(Order::relaxed, Order::relaxed, model));
    EXPECT_TRUE(both_old(Order::release, Order::acquire, model));
    EXPECT_FALSE(both_old(Order::seq_cst, Order::seq_cst, model));
  }
}

TEST(Machine, RunsAStoreBeforeAnEarlierLoadOnArmOnly) {
  const auto both_new = [](Order read_order, Model model) {
    return both_find(1, {read(kX, read_order), write(kY)}, {read(kY, read_order), write(kX)},
                     model);
  };
  EXPECT_FALSE(both_new(Order::relaxed, Model::x86_tso));
  EXPECT_TRUE(both_new(Order::relaxed, Model::arm64));
  EXPECT_FALSE(both_new(Order::acquire, Model::arm64));
}

TEST(Machine, KeepsTheOrderOfOneWord) {
  const Program reader = {{.kind = Kind::await, .word = kX, .value = 1},
                          {.kind = Kind::load, .word = kX, .value = 1, .expected = true}};
  EXPECT_TRUE(explore({{write(kX)}, reader}, Model::language).holds());
}

TEST(Machine, OrdersAStoreBehindTheLoadThatDecidesIt) {
  // Load buffering with control dependencies: neither thread may act on what only the other's
  // action makes true. In the language alone nothing forbids it.
  const Program first = {{.kind = Kind::await, .word = kX, .value = 1}, write(kY)};
  const Program second = {{.kind = Kind::await, .word = kY, .value = 1}, write(kX)};
  EXPECT_FALSE(explore({first, second}, Model::arm64).holds()) << "must wait forever";
}

TEST(Machine, FindsSleepersThatNobodyWakes) {
  const Program sleeper = {read(kX), {.kind = Kind::futex_wait, .word = kX, .reg = 0}};
  EXPECT_FALSE(explore({sleeper}, Model::x86_tso).holds());
  // Woken, or awake because the word has changed: but not if it sleeps after the wake.
  const Program waker = {write(kX, Order::seq_cst), {.kind = Kind::futex_wake, .word = kX}};
  const Program once = {{.kind = Kind::futex_wait, .word = kX, .reg = 0}};
  EXPECT_TRUE(explore({once, waker}, Model::x86_tso).holds());
  const Program silent = {write(kX, Order::seq_cst)};
  EXPECT_FALSE(explore({once, silent}, Model::x86_tso).holds());
}

TEST(Machine, LetsOneThreadAtATimeHoldALock) {
  const Program both = {{.kind = Kind::lock, .word = kX},
                        {.kind = Kind::load, .word = kY, .value = 0, .expected = true},
                        {.kind = Kind::add, .word = kY, .value = 1},
                        {.kind = Kind::add, .word = kY, .value = 255},
                        {.kind = Kind::unlock, .word = kX}};
  EXPECT_TRUE(explore({both, both}, Model::arm64).holds());
  const Program careless(both.begin() + 1, both.end() - 1);
  EXPECT_FALSE(explore({both, careless}, Model::arm64).holds());
}

}  // namespace
}  // namespace moetap::model
