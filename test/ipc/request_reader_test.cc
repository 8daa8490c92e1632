#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::describe;
using test::message_of;
using test::row_of;
using test::Signal;
using Kind = Descriptor::Kind;

constexpr Milliseconds kPatience{test::kPatienceMs};

// As a worker with a host cache per request sends: positions [position, position + states.size())
// with rows that tell the request (in place of a step) and the position.
void send_chunk(ChannelProducer& producer, const Endpoint& endpoint, RequestId request,
                std::int64_t position, const std::vector<RowState>& states) {
  const std::span<std::byte> bytes = producer.acquire();
  const std::size_t rows_at = (states.size() + 63) / 64 * 64;
  const std::size_t row_bytes = endpoint.shape.row_bytes();
  std::memcpy(bytes.data(), states.data(), states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto row =
        row_of(Step(request.value()), static_cast<std::size_t>(position) + i, row_bytes);
    std::memcpy(&bytes[rows_at + i * row_bytes], row.data(), row_bytes);
  }
  Descriptor descriptor = describe(Kind::request, 0, states.size());
  descriptor.request = request;
  descriptor.position = position;
  producer.commit(descriptor);
}

constexpr std::int64_t kNoDoubt = 1 << 20;

void send_end(ChannelProducer& producer, RequestId request, std::size_t rows,
              std::int64_t doubtful = kNoDoubt) {
  (void)producer.acquire();
  Descriptor descriptor = describe(Kind::request_end, 0, rows);
  descriptor.request = request;
  descriptor.position = doubtful;
  producer.commit(descriptor);
}

std::vector<RowState> present(std::size_t count) { return {count, RowState::present}; }

struct Taken {
  std::vector<std::byte> rows;
  std::vector<RowState> states;
};

Taken take(RequestReadTransport& reader, RequestId request, TokenRange range,
           Milliseconds timeout = kPatience) {
  const auto count = static_cast<std::size_t>(range.size());
  Taken taken{std::vector<std::byte>(count * reader.shape().row_bytes(), std::byte{1}),
              std::vector<RowState>(count, RowState::stale)};
  reader.take(request, range, taken.rows, taken.states, timeout);
  return taken;
}

// Positions in `present` have the request's rows, all others of the range are missing.
void expect_rows(const Taken& taken, const ModelShape& shape, RequestId request, TokenRange range,
                 const std::vector<std::int64_t>& present) {
  const std::size_t row_bytes = shape.row_bytes();
  for (std::int64_t position = range.start; position < range.end; ++position) {
    const auto i = static_cast<std::size_t>(position - range.start);
    const auto first = taken.rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    const std::vector<std::byte> row(first, first + static_cast<std::ptrdiff_t>(row_bytes));
    if (std::ranges::find(present, position) != present.end()) {
      EXPECT_EQ(taken.states[i], RowState::present) << "position " << position;
      EXPECT_EQ(row, row_of(Step(request.value()), static_cast<std::size_t>(position), row_bytes));
    } else {
      EXPECT_EQ(taken.states[i], RowState::missing) << "position " << position;
      EXPECT_EQ(row, std::vector<std::byte>(row_bytes, std::byte{0xFF}));
    }
  }
}

using RequestReaderInTwoProcesses = test::EndpointTest;

class RequestReaderTest : public test::EndpointTest {
 protected:
  void chunk(RequestId request, std::int64_t position, const std::vector<RowState>& states) {
    send_chunk(producer, endpoint, request, position, states);
  }
  void end(RequestId request, std::size_t rows) { send_end(producer, request, rows); }
  void step_done(Step step) {
    (void)producer.acquire();
    producer.commit(describe(Kind::step_done, step, 0));
  }

  ChannelProducer producer{endpoint};
  std::unique_ptr<RequestReadTransport> reader = make_request_reader(endpoint);
};

TEST_F(RequestReaderTest, TakesWhatTheWorkerHandedOver) {
  chunk(7, 0, present(8));
  chunk(7, 8, present(2));
  end(7, 10);
  const TokenRange range{0, 10};
  expect_rows(take(*reader, 7, range), endpoint.shape, 7, range, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

// H16, H9: the caller's range decides what comes back, and what the worker never had is missing.
TEST_F(RequestReaderTest, PositionsThatDidNotComeAreMissing) {
  using enum RowState;
  chunk(7, 4, {present, missing, present});
  chunk(7, 9, {present});
  end(7, 4);
  const TokenRange range{2, 12};
  expect_rows(take(*reader, 7, range), endpoint.shape, 7, range, {4, 6, 9});
}

// H18: asking from a later start returns only what is new.
TEST_F(RequestReaderTest, RowsOutsideTheRangeAreLeftOut) {
  chunk(7, 0, present(8));
  end(7, 8);
  expect_rows(take(*reader, 7, {3, 5}), endpoint.shape, 7, {3, 5}, {3, 4});
}

// H30: fewer tokens stand than the last span had, from position 5 on; it may have been a tree.
TEST_F(RequestReaderTest, OfALastSpanOfWhichNotAllStandsOnlyTheFirstTokenHasARow) {
  for (const RequestId request : {RequestId(1), RequestId(2), RequestId(3)}) {
    chunk(request, 0, present(5));
    chunk(request, 5, present(3));
    send_end(producer, request, 8, 6);
    reader->poll();  // makes room
  }
  expect_rows(take(*reader, 1, {4, 8}), endpoint.shape, 1, {4, 8}, {4, 5, 6, 7});
  expect_rows(take(*reader, 2, {4, 7}), endpoint.shape, 2, {4, 7}, {4, 5});
  expect_rows(take(*reader, 3, {7, 9}), endpoint.shape, 3, {7, 9}, {7});
}

TEST_F(RequestReaderTest, RequestsMayInterleave) {
  chunk(1, 0, present(2));
  chunk(2, 0, present(3));
  chunk(1, 2, present(1));
  reader->poll();  // makes room
  end(2, 3);
  end(1, 3);
  expect_rows(take(*reader, 1, {0, 3}), endpoint.shape, 1, {0, 3}, {0, 1, 2});
  expect_rows(take(*reader, 2, {0, 3}), endpoint.shape, 2, {0, 3}, {0, 1, 2});
}

TEST_F(RequestReaderTest, ARequestWithoutRowsIsAllMissing) {
  end(7, 0);
  expect_rows(take(*reader, 7, {0, 4}), endpoint.shape, 7, {0, 4}, {});
}

TEST_F(RequestReaderTest, ARequestIsNotTakenBeforeItsEnd) {
  chunk(7, 0, present(2));
  const std::string text = message_of<TimeoutError>([&] {
    take(*reader, 7, {0, 2}, Milliseconds(20));
  });
  EXPECT_TRUE(contains(text, "request 7")) << text;
  end(7, 2);
  expect_rows(take(*reader, 7, {0, 2}), endpoint.shape, 7, {0, 2}, {0, 1});
}

TEST_F(RequestReaderTest, TakingARequestTwiceIsAnErrorAtOnce) {
  chunk(7, 0, present(2));
  end(7, 2);
  take(*reader, 7, {0, 2});
  const std::string text = message_of<StateError>([&] {
    take(*reader, 7, {0, 2}, Milliseconds::max());
  });
  EXPECT_TRUE(contains(text, "request 7")) << text;
}

TEST_F(RequestReaderTest, StepsAdvanceAndFailuresAreTold) {
  step_done(1);
  (void)producer.acquire();
  Descriptor failed = describe(Kind::failed_step, 2, 0);
  std::snprintf(failed.text, sizeof failed.text, "layer 2 was not captured");
  producer.commit(failed);
  step_done(3);
  reader->wait_for(1, kPatience);
  reader->wait_for(3, kPatience);
  EXPECT_EQ(reader->poll(), Step(3));
  const std::string text = message_of<StepFailed>([&] { reader->wait_for(2, kPatience); });
  EXPECT_TRUE(contains(text, "layer 2 was not captured")) << text;
  step_done(3);
  EXPECT_THROW(reader->poll(), MismatchError);
}

TEST_F(RequestReaderTest, SizesThatDoNotFitAreRefusedAndTheRequestStays) {
  chunk(7, 0, present(2));
  end(7, 2);
  std::vector<std::byte> rows(2 * endpoint.shape.row_bytes());
  std::vector<RowState> states(2);
  EXPECT_THROW(reader->take(7, {0, 3}, rows, states, kPatience), ArgumentError);
  EXPECT_THROW(reader->take(7, {-1, 1}, rows, states, kPatience), ArgumentError);
  EXPECT_THROW(reader->take(7, {2, 0}, rows, states, kPatience), ArgumentError);
  EXPECT_THROW(reader->take(7, {0, 2}, std::span(rows).first(rows.size() - 1), states, kPatience),
               ArgumentError);
  EXPECT_THROW(reader->take(7, {0, 2}, rows, std::span(states).first(1), kPatience), ArgumentError);
  expect_rows(take(*reader, 7, {0, 2}), endpoint.shape, 7, {0, 2}, {0, 1});
}

TEST_F(RequestReaderTest, AStepRecordNamesTheRightReader) {
  test::send_step(producer, endpoint.shape, 1, std::vector<Slot>{1});
  const std::string text = message_of<MismatchError>([&] { reader->poll(); });
  EXPECT_TRUE(contains(text, "make_device_reader")) << text;
}

// A lost record may not pass as positions that the worker never computed.
TEST_F(RequestReaderTest, AnEndThatCountsOtherRowsThanCameIsAMismatch) {
  chunk(7, 0, present(2));
  end(7, 3);
  const std::string text = message_of<MismatchError>([&] { take(*reader, 7, {0, 3}); });
  EXPECT_TRUE(contains(text, "after 3 rows, but 2 came")) << text;
}

TEST_F(RequestReaderTest, ASecondEndIsAMismatch) {
  end(7, 0);
  end(7, 0);
  EXPECT_THROW(reader->poll(), MismatchError);
}

TEST_F(RequestReaderTest, RowsAfterTheEndAreAMismatch) {
  end(7, 0);
  chunk(7, 0, present(1));
  const std::string text = message_of<MismatchError>([&] { reader->poll(); });
  EXPECT_TRUE(contains(text, "the request had ended")) << text;
}

// H10: were the rows of a first run sent before those of the second, they must not mix.
TEST_F(RequestReaderTest, RowsThatComeTwiceAreAMismatch) {
  chunk(7, 0, present(4));
  chunk(7, 3, present(4));
  const std::string text = message_of<MismatchError>([&] { reader->poll(); });
  EXPECT_TRUE(contains(text, "rows up to 4 had come")) << text;
}

TEST_F(RequestReaderTest, AStateThatNoWorkerSendsIsAMismatch) {
  chunk(7, 0, {RowState::present, RowState::stale});
  EXPECT_THROW(reader->poll(), MismatchError);
}

TEST_F(RequestReaderTest, AStateThatIsNoneIsAMismatch) {
  chunk(7, 0, {static_cast<RowState>(200)});
  EXPECT_THROW(reader->poll(), MismatchError);
}

TEST_F(RequestReaderInTwoProcesses, TakesManyRequestsFromAnotherProcess) {
  constexpr std::uint64_t kRequests = 200;
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    for (std::uint64_t number = 1; number <= kRequests; ++number) {
      const RequestId request(number);
      const std::size_t tokens = request.value() % 20;
      for (std::size_t at = 0; at < tokens; at += 8) {
        send_chunk(producer, endpoint, request, static_cast<std::int64_t>(at),
                   present(std::min<std::size_t>(8, tokens - at)));
      }
      send_end(producer, request, tokens);
    }
    for (int i = 0; i < endpoint.ring_depth; ++i) (void)producer.acquire();
  });
  auto reader = make_request_reader(endpoint);
  for (std::uint64_t number = 1; number <= kRequests; ++number) {
    const RequestId request(number);
    const TokenRange range{0, static_cast<std::int64_t>(request.value() % 20)};
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < range.end; ++i) all.push_back(i);
    expect_rows(take(*reader, request, range), endpoint.shape, request, range, all);
  }
  EXPECT_EQ(worker.join(), 0);
}

TEST_F(RequestReaderInTwoProcesses, ATakeFromAWorkerThatDiesEndsAtOnceAndSaysSo) {
  Signal attached;
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    attached.wait();
    send_chunk(producer, endpoint, 7, 0, present(2));
    raise(SIGKILL);
  });
  auto reader = make_request_reader(endpoint);
  attached.raise();
  const auto start = std::chrono::steady_clock::now();
  const std::string text = message_of<TimeoutError>([&] {
    take(*reader, 7, {0, 2}, std::chrono::hours(1));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
  EXPECT_TRUE(contains(text, "died")) << text;
}

// The reader before it had taken in a part of a request.
TEST_F(RequestReaderTest, OneThatTakesOverInTheMiddleOfARequestHasTheRest) {
  chunk(7, 0, present(4));
  reader->poll();
  reader.reset();
  chunk(7, 4, present(3));
  end(7, 7);
  reader = make_request_reader(endpoint);
  std::vector<std::byte> rows(7 * endpoint.shape.row_bytes());
  std::vector<RowState> states(7);
  reader->take(7, {0, 7}, rows, states, kPatience);
  EXPECT_EQ(std::ranges::count(states, RowState::missing), 4);
  EXPECT_EQ(std::ranges::count(std::span(states).subspan(4), RowState::present), 3);
  // No other can have lost rows.
  end(8, 2);
  EXPECT_THROW(reader->poll(), MismatchError);
}

}  // namespace
}  // namespace moetap
