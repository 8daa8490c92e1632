// A reader in another process is killed. The worker waits for a successor at most once, and says
// truly why its steps have no rows.
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/host_device.h>
#include <moetap/read_transport.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr Milliseconds kPatience{kPatienceMs};
constexpr std::int64_t kTokens = 4;

enum class Kind { shm, wire, device, per_request };

class ReaderGone : public EndpointTest, public testing::WithParamInterface<Kind> {
 protected:
  ReaderGone() {
    endpoint.ring_depth = 2;
    endpoint.timeout = kPatience;  // of the readers
    if (GetParam() == Kind::wire) endpoint.layout = ShmLayout::wire;
  }

  static bool has_ring() { return GetParam() == Kind::device || GetParam() == Kind::per_request; }

  // Of a reader's process. Calls then(reader) with the outcomes up to `step`, if the layout has
  // steps.
  template <class Then>
  void read(Step step, Then&& then) const {
    const auto take_in = [&](const auto& reader) {
      while (GetParam() != Kind::wire && reader->poll() < step) usleep(1000);
      then(*reader);
    };
    if (GetParam() == Kind::per_request) return take_in(make_request_reader(endpoint));
    take_in(GetParam() == Kind::device ? make_device_reader(endpoint) : make_shm_reader(endpoint));
  }

  std::unique_ptr<Transport> transport() {
    if (!has_ring()) return make_shm_transport(*device, endpoint);
    const bool by_slot = GetParam() == Kind::device;
    return make_device_transport(
        *device, endpoint,
        {.host_cache = by_slot ? HostCache::scheduler : HostCache::per_request,
         .drafts = Drafts::chain});
  }

  // After the other processes were made, since it has threads.
  void make_worker() {
    endpoint.timeout = Milliseconds(1500);
    device = make_host_device();
    stream = device->make_stream();
    picks = device->allocate(kTokens * 2 * sizeof(std::int32_t));
    slots = device->allocate(kTokens * sizeof(Slot));
    const Buffer host = device->allocate_pinned(picks.size() + slots.size());
    for (int i = 0; i < kTokens * 2; ++i) host.as<std::int32_t>()[i] = i % 2;
    for (int i = 0; i < kTokens; ++i) host.as<Slot>(picks.size())[i] = Slot(i);
    stream->copy(picks.data(), host.data(), picks.size());
    stream->copy(slots.data(), host.data() + picks.size(), slots.size());
    stream->synchronize();
    capturer = std::make_unique<Capturer>(transport());
    for (const int layer : endpoint.shape.moe_layers()) capturer->bind(layer);
  }

  void run(Step step) {
    const auto position = (static_cast<std::int64_t>(step.value()) - 1) * kTokens;
    const RequestSpan span{1, position, kTokens};
    try {
      StepGuard open(*capturer, {.step = step, .num_tokens = kTokens, .requests = {&span, 1}},
                     *stream);
      for (const int layer : endpoint.shape.moe_layers()) {
        capturer->capture(
            layer,
            {.data = picks.as<std::int32_t>(), .rows = kTokens, .columns = 2, .row_stride = 2},
            *stream);
      }
      open.publish(slots.as<const Slot>());
    } catch (const TimeoutError&) {
    }
  }

  struct Ran {
    std::chrono::nanoseconds took;
    std::string failed;
  };
  Ran run(Step first, Step last) {
    Ran ran;
    const auto start = std::chrono::steady_clock::now();
    for (Step step = first; step <= last; ++step) run(step);
    ran.took = std::chrono::steady_clock::now() - start;
    for (const StepFailed& failure : capturer->take_failures()) ran.failed += failure.what();
    return ran;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Buffer picks, slots;
  std::unique_ptr<Capturer> capturer;
};

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  constexpr const char* kNames[] = {"shm", "wire", "device", "per_request"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, ReaderGone,
                         testing::Values(Kind::shm, Kind::wire, Kind::device, Kind::per_request),
                         kind_name);

TEST_P(ReaderGone, IsWaitedForOnceUntilAnotherIsThere) {
  constexpr Step kFull = 12;  // the ring is by then, and the caches of the worker
  constexpr Step kNext = 20;  // a successor has come
  constexpr Step kLast = 22;
  Signal attached, go;
  ChildProcess killed([&] {
    read(1, [&](auto&) {
      attached.raise();
      for (;;) pause();
    });
  });
  ChildProcess successor([&] {
    go.wait();
    read(kNext, [&](auto& reader) {
      attached.raise();
      if (GetParam() == Kind::wire) return;
      EXPECT_NO_THROW(reader.wait_for(kLast, kPatience));
      if (!has_ring()) return reader.wait_for(kNext, kPatience);
      const std::string why = message_of<StepFailed>([&] { reader.wait_for(kNext, kPatience); });
      EXPECT_TRUE(contains(why, "its ring was full")) << why;
      EXPECT_FALSE(contains(why, "forward pass")) << why;
      EXPECT_EQ(reader.dropped().given_up, 0u);
    });
  });
  make_worker();
  run(1, 1);
  attached.wait();
  killed.kill();
  const Ran first = run(2, kFull);
  const Ran later = run(kFull + 1, kNext);
  EXPECT_LT(later.took, endpoint.timeout);
  if (has_ring()) {
    EXPECT_GE(first.took, endpoint.timeout);
    EXPECT_LT(first.took, 2 * endpoint.timeout);
    EXPECT_TRUE(contains(first.failed, "gave it up, since publish() failed: waited 1500 ms"));
    EXPECT_TRUE(contains(later.failed, "gave it up, since publish() failed: waited 0 ms"));
    EXPECT_TRUE(contains(later.failed, "its reader is not there. Start a reader")) << later.failed;
  } else {
    EXPECT_LT(first.took, endpoint.timeout);
    EXPECT_EQ(first.failed + later.failed, "");
  }
  EXPECT_FALSE(contains(first.failed + later.failed, "forward pass")) << first.failed;

  go.raise();
  attached.wait();
  const Ran after = run(kNext + 1, kLast);
  EXPECT_LT(after.took, endpoint.timeout);
  EXPECT_EQ(after.failed, "");
  capturer->finalize(kLast, kPatience);
  EXPECT_EQ(successor.join(), 0);
}

}  // namespace
}  // namespace moetap::test
