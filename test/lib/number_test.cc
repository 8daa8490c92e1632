// What may be done with steps, requests, slots and blocks, and what must not compile.
#include <moetap/ledger.h>
#include <moetap/slots.h>
#include <moetap/types.h>

#include <gtest/gtest.h>

#include <array>
#include <concepts>
#include <limits>
#include <sstream>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace moetap {
namespace {

template <class A, class B>
concept Added = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept Subtracted = requires(A a, B b) {
  a - b;
};
template <class A, class B>
concept Compared = requires(A a, B b) {
  a == b;
};
template <class A, class B>
concept Ordered = requires(A a, B b) {
  a < b;
};
template <class A>
concept Counted = requires(A a) {
  ++a;
};
template <class A>
concept Multiplied = requires(A a) {
  a * 2;
};
template <class A>
concept Complemented = requires(A a) {
  ~a;
};
template <class A>
concept Limited = requires {
  std::numeric_limits<A>::max();
};

template <class S, class R>
concept Scheduled = requires(Ledger ledger, S step, R request) {
  ledger.schedule(step, request, TokenRange{});
};
template <class B>
concept FirstSlot = requires(B block) {
  first_slot(block, 16);
};

template <class N>
constexpr bool as_its_integer() {
  return std::is_trivially_copyable_v<N> && std::is_standard_layout_v<N> &&
         sizeof(N) == sizeof(typename N::Integer) && alignof(N) == alignof(typename N::Integer);
}

static_assert(as_its_integer<Step>() && as_its_integer<RequestId>() && as_its_integer<Slot>() &&
              as_its_integer<BlockId>());

// No kind becomes another, or an integer, by itself or by name.
template <class A, class B>
constexpr bool apart = !std::is_constructible_v<A, B> && !std::is_convertible_v<B, A> &&
                       !std::is_assignable_v<A&, B> && !Compared<A, B> && !Ordered<A, B> &&
                       !Added<A, B> && !Subtracted<A, B>;
static_assert(apart<Step, RequestId> && apart<RequestId, Step>);
static_assert(apart<Slot, BlockId> && apart<BlockId, Slot>);
static_assert(apart<Step, Slot> && apart<Slot, Step> && apart<RequestId, BlockId>);
static_assert(!std::is_convertible_v<Step, std::uint64_t> &&
              !std::is_constructible_v<std::int64_t, Slot> && !std::is_constructible_v<bool, Step>);
static_assert(!std::is_constructible_v<Step, bool> && !std::is_constructible_v<Slot, double>);

// Swapped arguments.
static_assert(Scheduled<Step, RequestId> && !Scheduled<RequestId, Step>);
static_assert(FirstSlot<BlockId> && !FirstSlot<Slot> && !FirstSlot<RequestId>);

// Arithmetic only where it means something.
static_assert(Added<Step, int> && Added<Slot, std::int64_t> && Counted<Step> && Counted<Slot>);
static_assert(!Added<Slot, Slot> && !Added<Step, Step> && !Added<int, Step>);
static_assert(!Added<RequestId, int> && !Added<BlockId, int> && !Counted<RequestId> &&
              !Counted<BlockId>);
static_assert(Subtracted<Slot, Slot> && Subtracted<Step, Step> && !Subtracted<BlockId, BlockId>);
static_assert(std::same_as<decltype(Step() - Step()), std::int64_t>);
static_assert(std::same_as<decltype(Slot() - Slot()), std::int64_t>);
static_assert(!Multiplied<Slot> && !Multiplied<Step> && !Complemented<Slot>);
static_assert(Ordered<Step, Step> && Ordered<BlockId, BlockId> && Ordered<RequestId, RequestId>);

// The primary template's limits would be 0.
static_assert(!Limited<Step> && !Limited<Slot>);

// Constants become numbers. That other integers do not is in number_refused.py.
constexpr Step kStep = 3;
constexpr std::array<Slot, 2> kSlots{5, -1};
static_assert(kStep == 3 && kStep > 2 && 2 < kStep && kStep + 1 == 4 && kStep - 1 == 2);
static_assert(Step(5) - kStep == 2 && kStep - Step(5) == -2);
static_assert(kSlots[1].value() == -1 && kSlots[0] - kSlots[1] == 6);
static_assert(Step::max().value() == std::numeric_limits<std::uint64_t>::max());
static_assert(Slot::min().value() == std::numeric_limits<std::int64_t>::min());
static_assert(first_slot(3, 16) == 48);

TEST(Number, CountsOn) {
  Step step = 7;
  EXPECT_EQ(step++, Step(7));
  EXPECT_EQ(++step, Step(9));
  step += 3;
  step -= 2;
  EXPECT_EQ(step, Step(10));
}

TEST(Number, IsHashedAndPrintedAsItsInteger) {
  const std::unordered_set<RequestId> requests{1, 2, 2};
  EXPECT_EQ(requests.size(), 2u);
  EXPECT_TRUE(requests.contains(2));
  std::ostringstream text;
  text << Step(12) << ' ' << Slot(-3);
  EXPECT_EQ(text.str(), "12 -3");
}

TEST(Number, AnArrayOfAnEngineIsLookedAtWithoutACopy) {
  std::vector<std::int64_t> integers{4, 7, -1};
  const std::span<const Slot> slots = as_slots(std::span<const std::int64_t>(integers));
  EXPECT_EQ(static_cast<const void*>(slots.data()), integers.data());
  EXPECT_EQ(static_cast<const void*>(as_slots(integers.data())), integers.data());
  EXPECT_EQ(slots[1], Slot(7));
  integers[1] = 9;  // may alias
  EXPECT_EQ(slots[1], Slot(9));
  EXPECT_EQ(as_blocks(integers)[2], BlockId(-1));
  EXPECT_EQ(slots_of(as_blocks(std::span<const std::int64_t>(integers).first(2)), 2, {1, 3}),
            (std::vector<Slot>{9, 18}));
}

}  // namespace
}  // namespace moetap
