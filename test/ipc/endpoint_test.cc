#include <moetap/endpoint.h>
#include <moetap/error.h>

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/table/wire_lock.h"
#include "test/ipc/message_of.h"
#include "test/ipc/temporary_directory.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::contains;
using test::message_of;
using test::ScopedVariable;

void expect_refused(const std::function<void(Endpoint&)>& spoil, const std::string& named) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.validate();
  spoil(endpoint);
  const std::string message = message_of<ArgumentError>([&] { endpoint.validate(); });
  EXPECT_TRUE(contains(message, named)) << message << "\n  does not name " << named;
}

TEST(Endpoint, RefusesFieldsThatCannotBeAndNamesThem) {
  expect_refused([](Endpoint& e) { e.instance = ""; }, "instance is ''");
  expect_refused([](Endpoint& e) { e.instance = "a/b"; }, "'a/b'");
  expect_refused([](Endpoint& e) { e.instance = std::string(65, 'x'); }, "1 to 64");
  expect_refused([](Endpoint& e) { e.dp_rank = -1; }, "dp_rank is -1");
  expect_refused([](Endpoint& e) { e.stage = -1; }, "stage is -1");
  expect_refused([](Endpoint& e) { e.stage = 1000; }, "stage is 1000");
  expect_refused([](Endpoint& e) { e.part = -1; }, "part is -1");
  expect_refused([](Endpoint& e) { e.part = 1000; }, "part is 1000");
  expect_refused([](Endpoint& e) { e.num_slots = 0; }, "num_slots is 0");
  expect_refused([](Endpoint& e) { e.num_slots = std::int64_t{1} << 40; }, "num_slots");
  expect_refused([](Endpoint& e) { e.max_tokens = 0; }, "max_tokens is 0");
  expect_refused([](Endpoint& e) { e.max_tokens = std::int64_t{1} << 40; }, "max_tokens");
  expect_refused([](Endpoint& e) { e.ring_depth = 0; }, "ring_depth is 0");
  expect_refused([](Endpoint& e) { e.ring_depth = 1'000'000; }, "ring_depth");
  expect_refused([](Endpoint& e) { e.layout = static_cast<ShmLayout>(7); }, "layout is 7");
}

TEST(Endpoint, TakesAnInstanceOfEveryAllowedCharacter) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.instance = "Az09-_." + std::string(57, 'x');
  endpoint.validate();
}

TEST(Names, H22HoldInstanceRankAndKind) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.instance = "a";
  endpoint.dp_rank = 7;
  EXPECT_EQ(buffer_name(endpoint), "/moetap_a_7");
  EXPECT_EQ(ring_name(endpoint), "/moetap_a_7_ring");
  endpoint.layout = ShmLayout::wire;
  EXPECT_EQ(buffer_name(endpoint), "/vllm_routed_experts_buffer_a_7");
}

TEST(Names, H22HoldStageAndPart) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.instance = "a";
  endpoint.stage = 2;
  EXPECT_EQ(buffer_name(endpoint), "/moetap_a_0_s2");
  EXPECT_EQ(ring_name(endpoint), "/moetap_a_0_s2_ring");
  endpoint.part = 3;
  EXPECT_EQ(buffer_name(endpoint), "/moetap_a_0_s2_p3");
  endpoint.stage = 0;
  EXPECT_EQ(ring_name(endpoint), "/moetap_a_0_p3_ring");
}

TEST(Names, H22NoInstanceCanPassForAStageOrPartOfAnother) {
  std::set<std::string> names;
  Endpoint endpoint = test::test_endpoint();
  int made = 0;
  for (const char* instance : {"a", "a_0", "a_0_s1", "a_0_p1", "a_0_s1_p1", "a_1", "a_0_ring"}) {
    endpoint.instance = instance;
    for (endpoint.dp_rank = 0; endpoint.dp_rank < 2; ++endpoint.dp_rank) {
      for (endpoint.stage = 0; endpoint.stage < 2; ++endpoint.stage) {
        for (endpoint.part = 0; endpoint.part < 2; ++endpoint.part, made += 2) {
          names.insert(buffer_name(endpoint));
          names.insert(ring_name(endpoint));
        }
      }
    }
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(made));
}

TEST(Endpoint, TheWireLayoutsOneBufferHasOneOwner) {
  const auto wire = [](int stage, int part) {
    return [=](Endpoint& e) {
      e.layout = ShmLayout::wire;
      e.stage = stage;
      e.part = part;
    };
  };
  expect_refused(wire(1, 0), "stage 1, part 0 of the wire-compatible layout");
  expect_refused(wire(0, 1), "stage 0, part 1 of the wire-compatible layout");
}

TEST(Endpoint, TheWireLayoutHasNoRoomForWeights) {
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
    const auto weighed_wire = [=](Endpoint& e) {
      e.layout = ShmLayout::wire;
      e.shape = e.shape.with_weights(type);
    };
    expect_refused(weighed_wire, std::string(weight_type_name(type)) +
                                     " weights with the wire-compatible layout");
  }
}

Topology two_stages() {
  return {
      .dp_size = 2, .dp_rank = 1, .tp_size = 2, .pp_size = 3, .stage_layers = {{0, 2}, {}, {1}}};
}

TEST(Endpoint, OfARankHasItsStagesShape) {
  const Endpoint engine = test::test_endpoint();
  Topology rank = two_stages();
  rank.pp_rank = 2;
  rank.tp_rank = 1;  // only captures, but into the same shape
  const Endpoint endpoint = endpoint_of(engine, rank);
  EXPECT_EQ(endpoint.dp_rank, 1);
  EXPECT_EQ(endpoint.stage, 2);
  EXPECT_EQ(endpoint.part, 0);
  EXPECT_EQ(endpoint.shape, engine.shape.with_layers({1}));
  EXPECT_EQ(endpoint.num_slots, engine.num_slots);
  rank.pp_rank = 1;  // H26
  EXPECT_THROW((void)endpoint_of(engine, rank), ArgumentError);
  rank.cp_size = 2;
  EXPECT_THROW((void)endpoints_of(engine, rank), ArgumentError);
}

TEST(Endpoint, ASchedulerReadsStagesWithMoeLayersOnly) {  // H26
  Topology topology = two_stages();
  std::vector<std::vector<Endpoint>> stages = endpoints_of(test::test_endpoint(), topology);
  ASSERT_EQ(stages.size(), 2u);
  ASSERT_EQ(stages[1].size(), 1u);
  EXPECT_EQ(stages[0][0].stage, 0);
  EXPECT_EQ(stages[1][0].stage, 2);
  topology.sp_size = 2;
  topology.parts = SequenceParts::published;
  stages = endpoints_of(test::test_endpoint(), topology);
  ASSERT_EQ(stages[1].size(), 2u);
  EXPECT_EQ(stages[1][1].part, 1);
}

TEST(Endpoint, ATopologyWithTheWireLayoutHasOneOwner) {
  Endpoint engine = test::test_endpoint();
  engine.layout = ShmLayout::wire;
  Topology rank = two_stages();  // whose first stage has a name that could be its own
  const auto refused = [&] {
    return message_of<ArgumentError>([&] { endpoint_of(engine, rank); });
  };
  EXPECT_TRUE(contains(refused(), "3 pipeline stages")) << refused();
  rank = {.tp_size = 2, .sp_size = 2, .parts = SequenceParts::published};
  EXPECT_TRUE(contains(refused(), "2 publishing ranks")) << refused();
  rank.parts = SequenceParts::gathered;
  EXPECT_NO_THROW(endpoint_of(engine, rank));
}

TEST(WireLockPath, IsWherePythonsTempfileLooks) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.dp_rank = 3;
  const std::string file = "vllm_routed_experts_" + endpoint.instance + "_3.lock";
  const test::TemporaryDirectory first;
  const ScopedVariable tmpdir("TMPDIR", first.path());
  EXPECT_EQ(wire_lock_path(endpoint), first.path() / file);
  const test::TemporaryDirectory second;
  const ScopedVariable unset("TMPDIR", "/no/such/directory");
  const ScopedVariable temp("TEMP", second.path());
  EXPECT_EQ(wire_lock_path(endpoint), second.path() / file);
}

}  // namespace
}  // namespace moetap
