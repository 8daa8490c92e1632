#include "examples/simulator/protocol.h"

#include <moetap/error.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace demo {
namespace {

std::pair<Socket, Socket> socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

StepPlan some_plan() {
  StepPlan plan;
  plan.step = 9;
  plan.ended = {{3, 1}};
  plan.spans = {{1, 11, 0, 2, 1, SpanKind::prefill, 1}, {2, 22, 40, 3, 0, SpanKind::decode, 0}};
  plan.blocks = {77};
  plan.wanted = {{0, 2}};
  plan.tokens = {5, 6};
  plan.num_tokens = 5;
  return plan;
}

TEST(Protocol, APlanArrivesAsItWasSent) {
  auto [a, b] = socket_pair();
  std::vector<std::byte> bytes;
  encode(some_plan(), bytes);
  a.send(Message::plan, bytes);
  const auto received = b.receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->message, Message::plan);
  const PlanView plan = decode_plan(received->payload);
  EXPECT_EQ(plan.step, Step(9));
  EXPECT_EQ(plan.num_tokens, 5);
  ASSERT_EQ(plan.ended.size(), 1U);
  EXPECT_EQ(plan.ended[0].request, moetap::RequestId(3));
  EXPECT_EQ(plan.ended[0].how, 1U);
  ASSERT_EQ(plan.spans.size(), 2U);
  EXPECT_EQ(plan.spans[0].new_blocks, 1);
  EXPECT_EQ(plan.spans[0].starts, 1U);
  EXPECT_EQ(plan.spans[1].request, moetap::RequestId(2));
  EXPECT_EQ(plan.spans[1].seed, 22U);
  EXPECT_EQ(plan.spans[1].position, 40);
  EXPECT_EQ(plan.spans[1].count, 3);
  EXPECT_EQ(plan.spans[1].kind, SpanKind::decode);
  EXPECT_EQ(std::vector(plan.blocks.begin(), plan.blocks.end()), some_plan().blocks);
  EXPECT_EQ(std::vector(plan.wanted.begin(), plan.wanted.end()), some_plan().wanted);
  EXPECT_EQ(std::vector(plan.tokens.begin(), plan.tokens.end()), some_plan().tokens);
}

TEST(Protocol, AReplyArrivesAsItWasSent) {
  const std::vector<std::int32_t> counts{1, 2};
  const std::vector<Token> sampled{8, 9, 10};
  std::vector<std::byte> bytes;
  encode({{4, 123, 456}, counts, sampled}, bytes);
  const StepReply reply = decode_reply(bytes);
  EXPECT_EQ(reply.times.step, Step(4));
  EXPECT_EQ(reply.times.forward_end_ns, 123);
  EXPECT_EQ(reply.times.moetap_ns, 456);
  EXPECT_EQ(std::vector(reply.counts.begin(), reply.counts.end()), counts);
  EXPECT_EQ(std::vector(reply.sampled.begin(), reply.sampled.end()), sampled);
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_reply(bytes), moetap::MismatchError);
}

TEST(Protocol, AConfigurationArrivesAsItWasSent) {
  const WorkerConfig config{
      .endpoint = {.instance = "demo-1",
                   .dp_rank = 3,
                   .shape = moetap::ModelShape({1, 3, 5}, 2, 300, 9).with_repeated_experts(),
                   .num_slots = 640,
                   .max_tokens = 77,
                   .layout = moetap::ShmLayout::wire},
      .dp_size = 4,
      .block_size = 8,
      .transport = TransportKind::device,
      .rows_by_request = true,
      .device = "host",
      .step_ms = 0.25,
      .drafts = true,
      .reject_rate = 0.125};
  const WorkerConfig copy = decode_config(encode(config));
  EXPECT_EQ(copy.endpoint.instance, "demo-1");
  EXPECT_EQ(copy.endpoint.dp_rank, 3);
  EXPECT_EQ(copy.dp_size, 4);
  EXPECT_EQ(copy.endpoint.shape, config.endpoint.shape);
  EXPECT_EQ(copy.endpoint.num_slots, 640);
  EXPECT_EQ(copy.endpoint.max_tokens, 77);
  EXPECT_EQ(copy.endpoint.ring_depth, config.endpoint.ring_depth);
  EXPECT_EQ(copy.endpoint.timeout, config.endpoint.timeout);
  EXPECT_EQ(copy.endpoint.layout, moetap::ShmLayout::wire);
  EXPECT_EQ(copy.transport, TransportKind::device);
  EXPECT_TRUE(copy.rows_by_request);
  EXPECT_EQ(copy.device, "host");
  EXPECT_EQ(copy.step_ms, 0.25);
  EXPECT_EQ(copy.block_size, 8);
  EXPECT_TRUE(copy.drafts);
  EXPECT_EQ(copy.reject_rate, 0.125);
}

TEST(Protocol, AMessageLargerThanTheSocketBufferArrivesWhole) {
  auto [a, b] = socket_pair();
  std::vector<std::byte> bytes(8 << 20);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  std::thread sender([&a = a, &bytes] { a.send(Message::plan, bytes); });
  const auto received = b.receive();
  sender.join();
  ASSERT_TRUE(received);
  ASSERT_EQ(received->payload.size(), bytes.size());
  EXPECT_EQ(std::memcmp(received->payload.data(), bytes.data(), bytes.size()), 0);
}

TEST(Protocol, TheEndOfTheOtherProcessIsSeen) {
  auto [a, b] = socket_pair();
  EXPECT_FALSE(b.failed());
  a.send(Message::reply, std::string("x"));
  EXPECT_FALSE(b.failed());
  EXPECT_TRUE(b.receive());
  a = Socket(-1);
  EXPECT_TRUE(b.failed());
  EXPECT_FALSE(b.receive());
  EXPECT_THROW(b.send(Message::plan, std::string("x")), moetap::SystemError);
}

TEST(Protocol, AnErrorIsSeenWithoutTakingIt) {
  auto [a, b] = socket_pair();
  a.send(Message::error, std::string("no memory"));
  EXPECT_TRUE(b.failed());
  const auto received = b.receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(to_text(received->payload), "no memory");
}

TEST(Protocol, RefusesWhatIsNoMessage) {
  auto [a, b] = socket_pair();
  const std::vector<char> zeros(64);  // would be a message without a payload
  ASSERT_EQ(::send(a.fd(), zeros.data(), zeros.size(), 0), 64);
  EXPECT_THROW(b.receive(), moetap::MismatchError);
}

void expect_mismatch(std::span<const std::byte> payload, const std::string& part) {
  try {
    decode_plan(payload);
    ADD_FAILURE() << "accepted";
  } catch (const moetap::MismatchError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

const WorkerConfig kConfig{.endpoint = {.instance = "some-instance-with-a-long-name",
                                        .shape = moetap::ModelShape::uniform(2, 2, 8),
                                        .num_slots = 16,
                                        .max_tokens = 8}};

void expect_refused(const std::string& text, const std::string& part) {
  try {
    decode_config(text);
    ADD_FAILURE() << "accepted " << text;
  } catch (const moetap::ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Protocol, RefusesAConfigurationWithoutANumber) {
  WorkerConfig config = kConfig;
  config.step_ms = std::numeric_limits<double>::quiet_NaN();  // JSON has no NaN: null
  expect_refused(encode(config), "\"step_ms\"");
}

TEST(Protocol, RefusesAConfigurationWithAMemberOfAnotherKind) {
  const auto good = nlohmann::json::parse(encode(kConfig));
  for (const auto& [name, value] : good.items()) {
    for (const char* other :
         {"null", "{}", "[1]", "\"shn\"", "0.5", "1e300", "true", "-1", "18446744073709551615"}) {
      auto json = good;
      json[name] = nlohmann::json::parse(other);
      if (json[name].type() == value.type()) continue;
      if (json[name].is_number_integer() && value.is_number_integer()) continue;
      expect_refused(json.dump(), name);
    }
    auto json = good;
    json.erase(name);
    expect_refused(json.dump(), name);
  }
  auto json = good;
  json["top_k"] = 18446744073709551615U;
  expect_refused(json.dump(), "top_k");
  json["top_k"] = std::int64_t{1} << 32;
  expect_refused(json.dump(), "top_k");
  json = good;
  json["transport"] = "shn";
  expect_refused(json.dump(), "transport");
}

TEST(Protocol, ReadsAConfigurationAsStrictlyAsAnyOtherJson) {
  const std::string good = encode(kConfig);
  EXPECT_NO_THROW(decode_config(good));
  expect_refused("", "no valid JSON");
  expect_refused("[]", "has no");
  expect_refused("{\"top_k\": 3, " + good.substr(1), "twice");
  expect_refused(
      "{\"x\": " + std::string(100'000, '[') + std::string(100'000, ']') + ", " + good.substr(1),
      "nested");
}

TEST(Protocol, RefusesAPlanWhoseSizesContradictEachOther) {
  std::vector<std::byte> bytes;
  encode(some_plan(), bytes);
  expect_mismatch(std::span(bytes).first(bytes.size() - 1),
                  "announces 2 values of 4 bytes and has 7 bytes left");
  bytes.push_back(std::byte{0});
  expect_mismatch(bytes, "1 bytes too many");
  encode(some_plan(), bytes);
  const std::uint64_t huge = ~0ULL / 8;
  std::memcpy(&bytes[24], &huge, sizeof huge);  // the number of spans
  expect_mismatch(bytes, "announces 2305843009213693951 values");
}

// A plan that some_plan() is made by this change.
template <class Change>
void expect_refused(Change&& change, const std::string& part) {
  StepPlan plan = some_plan();
  change(plan);
  std::vector<std::byte> bytes;
  encode(plan, bytes);
  expect_mismatch(bytes, part);
}

TEST(Protocol, RefusesAPlanWhoseSpansDoNotShareItsPartsOut) {
  expect_refused([](StepPlan& p) { p.spans[1].count = 4; },
                 "step 9 has 3 tokens left for a span of 4");
  expect_refused([](StepPlan& p) { p.spans[1].count = 2; },
                 "step 9 has 1 tokens that are in no span");
  expect_refused([](StepPlan& p) { p.spans[1].count = 0; },
                 "step 9 has 3 tokens left for a span of 0");
  expect_refused([](StepPlan& p) { p.spans[1].count = -1; },
                 "step 9 has 3 tokens left for a span of -1");
  expect_refused([](StepPlan& p) { p.spans[1].kind = SpanKind::last_prefill; },
                 "step 9 has 0 known tokens left for a span of 3");
  expect_refused([](StepPlan& p) { p.spans[0].kind = SpanKind::decode; },
                 "step 9 has 2 known tokens that are in no span");
  expect_refused([](StepPlan& p) { p.spans[1].new_blocks = 1; },
                 "step 9 has 0 blocks left for a span of 1");
  expect_refused([](StepPlan& p) { p.spans[1].new_blocks = -1; },
                 "step 9 has 0 blocks left for a span of -1");
  expect_refused([](StepPlan& p) { p.spans[0].new_blocks = 0; },
                 "step 9 has 1 blocks that are in no span");
  expect_refused([](StepPlan& p) { p.spans[1].kind = static_cast<SpanKind>(3); },
                 "step 9 has a span of kind 3");
}

}  // namespace
}  // namespace demo
