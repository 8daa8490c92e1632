// Rows that stay where they are, and who has them (H25).
#include <moetap/error.h>
#include <moetap/lease.h>
#include <moetap/read_rows.h>
#include <moetap/row_plan.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "test/lib/ledger_world.h"
#include "test/lib/sample_routes.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;

TEST(LeaseBookTest, KnowsWhoHasWhatSinceWhen) {
  LeaseBook book;
  EXPECT_EQ(book.describe(), "no lease is out");
  EXPECT_FALSE(book.oldest());
  const auto before = LeaseBook::Clock::now();
  std::optional<Lease> first = book.lend("request 7");
  const Lease second = book.lend("request 8");
  ASSERT_TRUE(book.oldest());
  EXPECT_EQ(book.oldest()->holder, "request 7");
  EXPECT_GE(book.oldest()->since, before);
  EXPECT_LE(book.oldest()->since, LeaseBook::Clock::now());
  EXPECT_EQ(book.describe().find("2 leases are out, the oldest is held by request 7 for "), 0u);
  first.reset();
  EXPECT_EQ(book.size(), 1u);
  EXPECT_EQ(book.describe().find("a lease is out, held by request 8 for "), 0u);
}

TEST(LeaseBookTest, AMovedLeaseEndsOnce) {
  LeaseBook book;
  std::optional<Lease> first = book.lend("a");
  std::optional<Lease> second(std::move(*first));
  first.reset();
  EXPECT_EQ(book.size(), 1u);
  EXPECT_TRUE(second->stands());
  *second = book.lend("b");  // the first ends
  EXPECT_EQ(book.size(), 1u);
  EXPECT_EQ(book.oldest()->holder, "b");
  second.reset();
  EXPECT_EQ(book.size(), 0u);
}

TEST(LeaseBookTest, NoLeaseStandsWithoutItsLender) {
  std::optional<LeaseBook> book(std::in_place);
  const Lease lease = book->lend("a");
  EXPECT_TRUE(lease.stands());
  book.reset();
  EXPECT_FALSE(lease.stands());
}

TEST(LeaseBookTest, WaitsUntilAllAreBack) {
  LeaseBook book;
  EXPECT_TRUE(book.wait_until_back(LeaseBook::Clock::now()));
  std::optional<Lease> lease = book.lend("a");
  EXPECT_FALSE(book.wait_until_back(LeaseBook::Clock::now()));
  std::thread other([&] { lease.reset(); });
  EXPECT_TRUE(book.wait_until_back(LeaseBook::Clock::now() + std::chrono::minutes(1)));
  other.join();
}

const ModelShape kShape = ModelShape::uniform(2, 2, 16);

class RoutesViewTest : public testing::Test {
 protected:
  // Lends the rows of positions [5, 8), of which 6 is missing.
  RoutesView lend() {
    std::vector<const std::byte*> rows{routes.row(5).data(), nullptr, routes.row(7).data()};
    return RoutesView(kShape, {5, 8}, rows,
                      {RowState::present, RowState::missing, RowState::present},
                      book->lend("request 7"));
  }
  Routes expected() const {
    Routes copy = routes;
    copy.states()[1] = RowState::missing;
    std::fill_n(copy.bytes().begin() + static_cast<std::ptrdiff_t>(kShape.row_bytes()),
                kShape.row_bytes(), std::byte{0xFF});
    return copy;
  }
  static void expect_equal(const Routes& found, const Routes& expected) {
    EXPECT_EQ(found.range(), expected.range());
    EXPECT_TRUE(std::ranges::equal(found.states(), expected.states()));
    EXPECT_TRUE(std::ranges::equal(found.bytes(), expected.bytes()));
  }

  Routes routes = test::sample_routes(kShape, {5, 8});
  std::optional<LeaseBook> book{std::in_place};
};

TEST_F(RoutesViewTest, ShowsTheLendersRows) {
  const RoutesView view = lend();
  EXPECT_FALSE(view.owned());
  EXPECT_EQ(view.range(), (TokenRange{5, 8}));
  EXPECT_EQ(view.row(5).data(), routes.row(5).data());
  EXPECT_EQ(view.states()[1], RowState::missing);
  EXPECT_EQ(view.row(6)[0], std::byte{0xFF});
  EXPECT_EQ(view.row(6).size(), kShape.row_bytes());
  EXPECT_EQ(book->size(), 1u);
  expect_throw<RangeError>([&] { view.row(8); }, {"position 8", "[5, 8)"});
  expect_throw<RangeError>([&] { view.row(4); }, {"position 4"});
}

TEST_F(RoutesViewTest, DetachingCopiesAndGivesTheMemoryBack) {
  RoutesView view = lend();
  const Routes own = std::move(view).detach();
  EXPECT_EQ(book->size(), 0u);
  expect_equal(own, expected());
  EXPECT_NE(own.row(5).data(), routes.row(5).data());
}

TEST_F(RoutesViewTest, DetachingWhatIsOwnedIsFree) {
  const std::byte* rows = routes.bytes().data();
  RoutesView view(std::move(routes));
  EXPECT_TRUE(view.owned());
  EXPECT_EQ(view.row(7).data(), rows + 2 * kShape.row_bytes());
  const Routes own = std::move(view).detach();
  EXPECT_EQ(own.bytes().data(), rows);
}

TEST_F(RoutesViewTest, AViewThatIsDroppedGivesTheMemoryBack) {
  { const RoutesView view = lend(); }
  EXPECT_EQ(book->size(), 0u);
}

TEST_F(RoutesViewTest, IsOfNoUseWithoutItsLender) {
  RoutesView view = lend();
  book.reset();
  expect_throw<StateError>([&] { view.row(5); }, {"[5, 8)", "detach()"});
  expect_throw<StateError>([&] { std::move(view).detach(); }, {"[5, 8)", "detach()"});
}

TEST_F(RoutesViewTest, NeedsARowAndAStateForEachPosition) {
  expect_throw<ArgumentError>(
      [&] {
        RoutesView(kShape, {5, 8}, {nullptr, nullptr}, std::vector<RowState>(3), book->lend("a"));
      },
      {"2 rows", "3 states", "[5, 8)"});
  EXPECT_EQ(book->size(), 0u);
}

class ViewRowsTest : public test::LedgerWorld {};

TEST_F(ViewRowsTest, SaysWhatReadingSays) {
  admit(1, 8, {1, 2});
  compute(1, 1, {1, 2}, {0, 2});
  ledger.flush();
  compute(2, 1, {1, 2}, {2, 6});
  const RowPlan plan = ledger.finish(1, 10);
  const Routes read = read_rows(reader, plan, kNow);
  for (const bool lends : {false, true}) {
    memory->lends = lends;
    RoutesView view = view_rows(reader, plan, "request 1", kNow);
    EXPECT_EQ(view.owned(), !lends);
    EXPECT_EQ(memory->leases.size(), lends ? 1u : 0u);
    EXPECT_TRUE(std::ranges::equal(view.states(), read.states()));
    for (std::int64_t p = 0; p < 9; ++p) {
      EXPECT_TRUE(std::ranges::equal(view.row(p), read.row(p))) << "position " << p;
    }
    EXPECT_TRUE(std::ranges::equal(std::move(view).detach().bytes(), read.bytes()));
  }
}

// Else a request that asked for nothing would keep every step from being read.
TEST_F(ViewRowsTest, AViewOfNoRowsIsNoLease) {
  memory->lends = true;
  ledger.admit(
      {.request = 1, .num_tokens = 8, .placement = {Blocks{1, 2}, 0}, .wants_rows = false});
  admit(2, 4, {3});
  compute(1, 2, {3}, {0, 4});
  ledger.forget(Blocks{3});
  for (const RowPlan& plan : {ledger.finish(1, 9), ledger.finish(2, 5)}) {
    RoutesView view = view_rows(reader, plan, "request 1", kNow);
    EXPECT_EQ(memory->leases.size(), 0u);
    EXPECT_TRUE(view.owned());
    EXPECT_EQ(view.range(), plan.range);
    EXPECT_EQ(std::move(view).detach().count(RowState::present), 0u);
  }
}

TEST_F(ViewRowsTest, WaitsForItsSteps) {
  admit(1, 4, {1});
  ledger.schedule(1, 1, {0, 4});
  const RowPlan plan = ledger.finish(1, 5);
  expect_throw<TimeoutError>([&] { view_rows(reader, plan, "request 1", kNow); }, {"step 1"});
}

}  // namespace
}  // namespace moetap
