#include "examples/simulator/clients.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace demo {
namespace {

class ClientsTest : public testing::Test {
 protected:
  std::shared_ptr<Sequence> sequence(std::int64_t prompt, std::vector<std::uint64_t> blocks) {
    auto added = std::make_shared<Sequence>();
    added->id = RequestId(sequences.size() + 1);
    added->request = {"test", added->id.value(), prompt, 10, std::move(blocks)};
    sequences.push_back(added);
    return added;
  }

  // Rows that say whose they are and of which position.
  moetap::Routes rows(RequestId request, moetap::TokenRange range) {
    moetap::Routes routes(shape, range);
    for (std::int64_t p = range.start; p < range.end; ++p) {
      const auto i = static_cast<std::size_t>(p - range.start);
      routes.bytes()[2 * i] = static_cast<std::byte>(request.value());
      routes.bytes()[2 * i + 1] = static_cast<std::byte>(p % 251);
    }
    std::ranges::fill(routes.states(), moetap::RowState::present);
    return routes;
  }

  static std::uint32_t owner(const moetap::Routes& routes, std::int64_t position) {
    EXPECT_EQ(routes.id(position, 0, 1), position % 251);
    return routes.id(position, 0, 0);
  }

  moetap::ModelShape shape = moetap::ModelShape::uniform(1, 2, 256);
  Clients::Sequences sequences;
};

// H18: a continued request returns what is new, and its client joins it with what it had.
TEST_F(ClientsTest, JoinsTheTurnsOfAConversation) {
  const auto first = sequence(1000, {1, 2});
  const auto other = sequence(1000, {1, 3});
  const auto second = sequence(1600, {1, 2, 4, 5});
  Clients clients(shape, sequences, 1);
  clients.append(*first, rows(1, {0, 1009}));
  EXPECT_EQ(clients.finish(*first).range(), (moetap::TokenRange{0, 1009}));
  EXPECT_EQ(other->start, 512);    // the first prompt's first block
  EXPECT_EQ(second->start, 1000);  // its prompt: the latest that begins alike for longest
  second->run = 1;
  clients.append(*second, rows(3, {1000, 1609}));
  EXPECT_EQ(second->taken, 1609);
  const moetap::Routes joined = clients.finish(*second);
  EXPECT_EQ(joined.range(), (moetap::TokenRange{0, 1609}));
  EXPECT_EQ(owner(joined, 999), 1U);
  EXPECT_EQ(owner(joined, 1000), 3U);
  EXPECT_EQ(clients.counts().kept, 1000);
}

TEST_F(ClientsTest, AsksForEverythingWithoutTheEarlierTurnsRows) {
  const auto aborted = sequence(1000, {1, 2});
  const auto second = sequence(1000, {1, 2});
  const auto third = sequence(1000, {1, 2});
  Clients clients(shape, sequences, 1);
  clients.append(*aborted, rows(1, {0, 700}));
  clients.finish(*aborted);
  EXPECT_EQ(second->start, 0);
  third->run = 1;  // was admitted before the second one's rows came
  clients.append(*second, rows(2, {0, 1009}));
  clients.finish(*second);
  EXPECT_EQ(third->start, 0);
}

TEST_F(ClientsTest, FollowsOnlyAsOftenAsAskedAndOnlyWhoWantsRows) {
  const auto first = sequence(1000, {1, 2});
  const auto second = sequence(1000, {1, 2});
  Clients never(shape, sequences, 0);
  never.append(*first, rows(1, {0, 1009}));
  never.finish(*first);
  EXPECT_EQ(second->start, 0);
  second->wants_rows = false;
  Clients always(shape, sequences, 1);
  always.append(*first, rows(1, {0, 1009}));
  always.finish(*first);
  EXPECT_EQ(second->start, 0);
}

TEST_F(ClientsTest, RowsThatDoNotGoOnWhereTheClientStandsAreRefused) {
  const auto one = sequence(1000, {1, 2});
  Clients clients(shape, sequences, 1);
  clients.stream(*one, rows(1, {0, 40}));
  EXPECT_EQ(clients.counts().streamed, 40);
  EXPECT_THROW(clients.append(*one, rows(1, {39, 50})), moetap::ArgumentError);
  EXPECT_THROW(clients.append(*one, rows(1, {41, 50})), moetap::ArgumentError);
  clients.append(*one, rows(1, {40, 50}));
  EXPECT_EQ(clients.finish(*one).range(), (moetap::TokenRange{0, 50}));
}

}  // namespace
}  // namespace demo
