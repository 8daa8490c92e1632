#include <moetap/read_transport.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

#include "ipc/internal/claim.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/step_records.h"
#include "test/tool/tool_test.h"

namespace moetap {
namespace {

using test::contains;
using test::Result;
using test::run_tool;
using test::Slots;

using Inspect = test::ToolTest;

TEST_F(Inspect, ShowsALivingWorkersBuffer) {
  const Worker worker(endpoint, {{1, 2, 3}, {3, 4}});
  const auto found = inspected(name());
  EXPECT_EQ(found["name"], name());
  EXPECT_EQ(found["kind"], "shm");
  EXPECT_EQ(found["owner"], "alive");
  EXPECT_EQ(found["owner_pid"], worker.pid());
  EXPECT_EQ(found["bytes"], native_bytes(endpoint));
  EXPECT_EQ(found["instance"], endpoint.instance);
  EXPECT_EQ(found["dp_rank"], 0);
  EXPECT_EQ(found["moe_layers"], endpoint.shape.moe_layers());
  EXPECT_EQ(found["num_hidden_layers"], endpoint.shape.num_hidden_layers());
  EXPECT_EQ(found["repeats_experts"], false);
  EXPECT_EQ(found["top_k"], endpoint.shape.top_k());
  EXPECT_EQ(found["num_experts"], endpoint.shape.num_experts());
  EXPECT_EQ(found["num_slots"], endpoint.num_slots);
  EXPECT_EQ(found["max_tokens"], endpoint.max_tokens);
  EXPECT_EQ(found["last_step"], 2);
  EXPECT_EQ(found["rows_present"], 4);
  EXPECT_EQ(found["lock_holder"], 0);
  EXPECT_EQ(found["problem"], nullptr);
  EXPECT_EQ(inspected(endpoint.instance), found) << "by the instance";
  EXPECT_EQ(inspected(name().substr(1)), found) << "without the '/'";

  const Result text = run_tool({"inspect", name()});
  EXPECT_EQ(text.status, 0);
  for (const std::string& part :
       {name() + ": shm", fmt::format("owner alive (process {})", worker.pid()),
        endpoint.shape.to_string(),
        std::string("last step 2, 4 rows present, lock held by no process")}) {
    EXPECT_TRUE(contains(text.output, part)) << text.output;
  }
}

TEST_F(Inspect, KnowsAStagesPartByItsName) {
  endpoint.dp_rank = 7;
  endpoint.stage = 2;
  endpoint.part = 13;
  const Worker worker(endpoint, {{1}});
  const ChannelProducer producer(endpoint);
  for (const std::string& segment : {name(), ring_name(endpoint)}) {
    const auto found = inspected(segment);
    EXPECT_EQ(found["instance"], endpoint.instance);
    EXPECT_EQ(found["dp_rank"], 7);
    EXPECT_EQ(found["stage"], 2);
    EXPECT_EQ(found["part"], 13);
  }
  EXPECT_EQ(run_tool({"inspect", endpoint.instance, "--json"}).json()["segments"].size(), 2u);
}

TEST_F(Inspect, ShowsADeadWorkersBuffer) {
  const auto found = run_on_dead({{1, 2, 3}}, {"inspect", name(), "--json"}).json()["segments"][0];
  EXPECT_EQ(found["owner"], "dead");
  EXPECT_EQ(found["owner_pid"], 0);
  EXPECT_EQ(found["rows_present"], 3);
}

TEST_F(Inspect, NamesTheHolderOfTheLockAndKeepsNone) {
  const Worker worker(endpoint, {{1}});
  test::BufferLock lock(endpoint);
  EXPECT_EQ(inspected(name())["lock_held"], false);
  ASSERT_TRUE(lock.try_lock());
  const auto found = inspected(name());
  EXPECT_EQ(found["lock_held"], true);
  EXPECT_EQ(found["lock_holder"], getpid());
}

TEST_F(Inspect, SaysThatTheLockIsHeldWhereItsHolderHasNoNumber) {
  const auto elsewhere = [](std::vector<std::string> command) {
    const std::vector<std::string> unshare{"/usr/bin/unshare", "-rpf", "--mount-proc"};
    command.insert(command.begin(), unshare.begin(), unshare.end());
    demo::test::Program program(command);
    const int status = program.join();
    return Result{status, program.output()};
  };
  if (elsewhere({"/bin/true"}).status != 0) GTEST_SKIP() << "no PID namespaces here";
  const Worker worker(endpoint, {{1}});
  test::BufferLock lock(endpoint);
  for (const bool shared : {false, true}) {  // a worker, a reader
    shared ? lock.lock_shared() : lock.lock();
    const Result text = elsewhere({MOETAP_TOOL, "inspect", name()});
    EXPECT_TRUE(contains(text.output, "held by a process that cannot be named")) << text.output;
    const auto found = elsewhere({MOETAP_TOOL, "inspect", name(), "--json"}).json()["segments"][0];
    EXPECT_EQ(found["lock_held"], true);
    EXPECT_EQ(found["lock_holder"], 0);
    lock.unlock();
  }
  const Result text = elsewhere({MOETAP_TOOL, "inspect", name()});
  EXPECT_TRUE(contains(text.output, "lock held by no process")) << text.output;
}

TEST_F(Inspect, ShowsFailedStepsWithoutWhatATerminalActsOn) {
  ShmWriter writer(endpoint);
  writer.fail(1, {}, "bad \x1b[2J\xff text");
  const auto found = inspected(name());
  EXPECT_EQ(found["failed_steps"],
            nlohmann::json::parse(R"([{"step": 1, "reason": "bad \\x1b[2J\\xff text"}])"));
  EXPECT_TRUE(contains(run_tool({"inspect", name()}).output, "step 1 failed: bad \\x1b[2J"));
}

TEST_F(Inspect, ShowsARingAndTakesNothingOutOfIt) {
  ChannelProducer producer(endpoint);
  for (const Step step : {Step(1), Step(2), Step(3)})
    test::send_step(producer, endpoint.shape, step, Slots{1});
  auto found = inspected(ring_name(endpoint));
  EXPECT_EQ(found["kind"], "ring");
  EXPECT_EQ(found["owner_pid"], getpid());
  EXPECT_EQ(found["reader_pid"], 0);
  EXPECT_EQ(found["last_step"], 3);
  EXPECT_EQ(found["waiting"], 3);
  EXPECT_EQ(found["ring_depth"], endpoint.ring_depth);

  const auto reader = make_device_reader(endpoint);
  EXPECT_EQ(inspected(ring_name(endpoint))["reader_pid"], getpid());
  EXPECT_EQ(reader->poll(), Step(3));
  found = inspected(ring_name(endpoint));
  EXPECT_EQ(found["waiting"], 0);
  EXPECT_EQ(found["last_step"], 3);
  EXPECT_EQ(found["dropped_steps"], 0);
  std::string text = run_tool({"inspect", ring_name(endpoint)}).output;
  EXPECT_TRUE(contains(text, "0 of 4 records wait")) << text;
  EXPECT_FALSE(contains(text, "dropped")) << text;
  producer.drop({4, 4, 1});
  producer.drop({7, 9, 2});
  found = inspected(ring_name(endpoint));
  EXPECT_EQ(found["dropped_steps"], 3);
  EXPECT_EQ(found["last_dropped_step"], 9);
  text = run_tool({"inspect", ring_name(endpoint)}).output;
  EXPECT_TRUE(contains(text, "3 steps have no rows: 3 were dropped for want of room, 0 given up"))
      << text;
}

TEST_F(Inspect, ShowsAWireBufferAsNobodys) {
  endpoint.layout = ShmLayout::wire;
  const ShmWriter writer(endpoint);
  const auto found = inspected(name());
  EXPECT_EQ(found["kind"], "wire");
  EXPECT_EQ(found["problem"], nullptr);
}

TEST_F(Inspect, OfNothingIsStatus3ButAnEmptyListIsNone) {
  EXPECT_EQ(run_tool({"inspect", endpoint.instance}).status, 3);
  EXPECT_EQ(run_tool({"inspect", "--json"}).status & ~4, 0) << "whatever else there is";
}

TEST(ParseName, TakesNamesApartFromTheirEnds) {
  const auto parsed = parse_name("/moetap_a_1_s_2_s3_ring");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->instance, "a_1_s");
  EXPECT_EQ(parsed->dp_rank, 2);
  EXPECT_EQ(parsed->stage, 3);
  EXPECT_EQ(parsed->part, 0);
  for (const char* other : {"", "/moetap_", "/moetap_x", "/moetap_x_", "/moetap_1", "/other_x_1",
                            "/moetap_x_99999999999999999999", "/moetap_x_s1", "/moetap_ring"}) {
    EXPECT_FALSE(parse_name(other)) << other;
  }
}

// Lies in a living worker's segment are named, with status 4.
class InspectLies : public Inspect {
 protected:
  void expect_problem(const std::string& segment, const std::string& named) {
    const auto found = inspected(segment, 4);
    EXPECT_TRUE(contains(found["problem"].dump(), named)) << found["problem"];
    EXPECT_TRUE(contains(run_tool({"inspect", segment}).output, "problem: "));
  }
};

TEST_F(InspectLies, InABuffersControlBlockAreNamed) {
  ShmWriter writer(endpoint);
  const Segment segment = Segment::open(name());
  auto& head = reinterpret_cast<ShmControl*>(segment.bytes().data())->head;
  const ControlFields good = head.fields;
  const auto expect_refused = [&](auto lie, const std::string& named) {
    head.fields = good;
    lie(head.fields);
    expect_problem(name(), named);
  };
  constexpr auto kMost = std::numeric_limits<int>::max();
  expect_refused([](auto& f) { f.version = 77; }, "version 77");
  expect_refused([](auto& f) { f.num_layers = kMost; }, "2147483647 layers");
  expect_refused([](auto& f) { f.num_layers = 0; }, "0 layers");
  expect_refused([](auto& f) { f.top_k = -3; }, "-3");
  expect_refused([](auto& f) { f.num_experts = 1 << 30; }, "1073741824");
  expect_refused([](auto& f) { f.moe_layers[1] = -9; }, "layer");
  expect_refused([](auto& f) { f.num_hidden_layers = 0; }, "num_hidden_layers is 0");
  expect_refused([](auto& f) { f.repeats_experts = -1; }, "repeated experts (-1;");
  expect_refused([](auto& f) { f.num_slots = -1; }, "num_slots is -1");
  expect_refused([](auto& f) { f.num_slots = std::int64_t{1} << 32; }, "bytes");
  expect_refused([](auto& f) { f.num_slots = std::numeric_limits<std::int64_t>::max(); },
                 "num_slots");
  expect_refused([](auto& f) { f.max_tokens = 0; }, "max_tokens is 0");
  expect_refused([](auto& f) { f.ring_depth = -1; }, "ring_depth is -1");
  head.fields = good;
  EXPECT_EQ(inspected(name())["problem"], nullptr);
  head.magic = 0xBAD;
  expect_problem(name(), "0x0000000000000bad");
  head.magic = kRingMagic;
  head.fields.version = kRingVersion + 1;
  expect_problem(name(), "version");
}

TEST_F(InspectLies, InARingsHeadAreNamed) {
  ChannelProducer producer(endpoint);
  const Segment segment = Segment::open(ring_name(endpoint));
  const Ring ring(segment.bytes(), endpoint);
  ring.control().committed = 1000;
  expect_problem(ring_name(endpoint), "1000 records handed over");
  ring.control().released = 1000;
  ring.descriptor(999).kind = static_cast<Descriptor::Kind>(99);
  expect_problem(ring_name(endpoint), "kind 99");
}

TEST_F(InspectLies, ABufferThatWasCutShortIsNamed) {
  for (const std::size_t left :
       {std::size_t{4}, sizeof(ControlHead) - 8, sizeof(ShmControl), native_bytes(endpoint) - 1}) {
    Worker worker(endpoint, {{1}});
    ASSERT_EQ(truncate(("/dev/shm" + name()).c_str(), static_cast<off_t>(left)), 0);
    const Result result = run_tool({"inspect", name(), "--json"});
    // Too short for a magic it is what a worker that died while making it leaves.
    EXPECT_EQ(result.status, left < 8 ? 0 : 4) << result.output;
    worker.kill();
  }
}

// 2^32 slots in a sparse file: its size fits what it says, and nothing of it is there.
TEST_F(InspectLies, ASparseSegmentIsNamedAndAllOthersAreListed) {
  const Worker worker(endpoint, {{1, 2, 3}});
  Endpoint third = endpoint;
  third.dp_rank = 2;
  const Worker other(third, {{1}});
  Endpoint hostile = endpoint;
  hostile.dp_rank = 1;
  hostile.num_slots = std::int64_t{1} << 32;
  const test::Descriptor file(
      shm_open(buffer_name(hostile).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  ASSERT_TRUE(try_claim(file.get(), Role::owner, "the hostile one"));  // no process removes it
  ShmControl control{};
  control.head.publish(hostile, kShmMagic, kShmVersion);
  ASSERT_EQ(pwrite(file.get(), &control, sizeof control, 0), ssize_t{sizeof control});
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(native_bytes(hostile))), 0);

  const Result result = run_tool({"inspect", endpoint.instance, "--json"});
  EXPECT_EQ(result.status, 4) << result.output;
  const auto found = result.json()["segments"];
  ASSERT_EQ(found.size(), 3u) << result.output;
  EXPECT_EQ(found[0]["rows_present"], 3);
  EXPECT_TRUE(contains(found[1]["problem"].dump(), "are there")) << found[1];
  EXPECT_EQ(found[2]["rows_present"], 1);
  const Result text = run_tool({"inspect", endpoint.instance});
  EXPECT_EQ(text.status, 4);
  EXPECT_TRUE(contains(text.output, buffer_name(third) + ": shm")) << text.output;
  const auto dump = [&](const std::string& slots) {
    return run_tool({"dump", buffer_name(hostile), "--slots", slots, "--missing", "-o",
                     directory.path() / "rows.npy"});
  };
  EXPECT_EQ(dump("all").status, 4);
  EXPECT_EQ(dump("7").status, 4);
}

TEST_F(Inspect, TakesNoMoreMemoryForMoreSlots) {
  const test::Descriptor null("/dev/null");
  const auto peak_kib = [&](std::int64_t num_slots) {
    endpoint.num_slots = num_slots;
    const Worker worker(endpoint, {{static_cast<Slot>(num_slots - 1)}});
    EXPECT_EQ(inspected(name())["rows_present"], 1);
    test::ToolInto inspect(null.get(), {"inspect", name()});
    EXPECT_EQ(inspect.join(), 0);
    return inspect.peak_kib();
  };
  constexpr std::int64_t kMany = 4'000'000;
  const long few = peak_kib(64);
  EXPECT_LT(peak_kib(kMany), few + static_cast<long>(kMany * sizeof(Step) / 1024 / 4));
}

TEST_F(InspectLies, RandomBytesAreReportedAndCrashNothing) {
  ShmWriter writer(endpoint);
  const Segment segment = Segment::open(name());
  const auto bytes = segment.bytes();
  std::uint32_t random = 1;
  for (int i = 0; i < 20; ++i) {
    for (std::size_t at = i % 2 == 0 ? 8 : 12; at < bytes.size(); ++at) {
      random = random * 1664525 + 1013904223;
      bytes[at] = static_cast<std::byte>(random >> 24);
    }
    const Result result = run_tool({"inspect", name(), "--json"});
    EXPECT_EQ(result.status, 4) << result.output;
    result.json();
  }
}

}  // namespace
}  // namespace moetap
