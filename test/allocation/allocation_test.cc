// What may not allocate, in a program of its own: it counts what operator new is asked for.
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/host_device.h>
#include <moetap/lease.h>
#include <moetap/ledger.h>
#include <moetap/read_transport.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ipc/internal/channel.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"
#include "test/lib/sample_routes.h"

namespace {

std::atomic<std::int64_t> allocations{0};
bool refuses = false;  // as if there were no memory

void* count(void* memory) {
  if (refuses) {
    std::free(memory);
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

std::size_t rounded(std::size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return (size + unit - 1) / unit * unit;
}

}  // namespace

// The forms for arrays call these.
void* operator new(std::size_t size) { return count(std::malloc(size == 0 ? 1 : size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const std::size_t bytes = rounded(size == 0 ? 1 : size, alignment);
  return count(std::aligned_alloc(static_cast<std::size_t>(alignment), bytes));
}
// The library's own calls the one above, but a sanitizer's does not.
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace moetap {
namespace {

// How often call() allocated.
template <class Call>
std::int64_t allocations_of(Call&& call) {
  const std::int64_t before = allocations.load();
  call();
  return allocations.load() - before;
}

TEST(Allocations, AreCounted) {
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(8)); }), 1);
  EXPECT_EQ(allocations_of([] {
              constexpr std::align_val_t kAlignment{64};
              ::operator delete(::operator new(8, kAlignment), kAlignment);
            }),
            1);
}

// Requests that come, hit prefixes, decode, are preempted, resume, end and abort, a new one for
// each that goes. Plans are what may allocate, so their calls are not counted.
class SteadyEngine {
 public:
  SteadyEngine() {
    for (int block = 0; block < kBlocks; ++block) free_.emplace_back(block);
    for (std::uint64_t i = 0; i < kRunning; ++i) {
      running_.emplace_back().blocks.reserve(kBlocks);
      admit(running_.back(), 8 + static_cast<std::int64_t>(i * 40 / kRunning));
    }
  }

  std::int64_t counted = 0;

  void step() {
    ++step_;
    for (Request& request : running_) {
      if (request.tokens == request.end) {
        replace(request);
      } else if ((step_.value() + request.id.value()) % 37 == 0) {
        preempt(request);
      }
      decode(request);
    }
    if (step_.value() % 100 == 0) counted += allocations_of([&] { ledger_.flush(); });
  }

 private:
  static constexpr int kBlock = 4;
  static constexpr int kBlocks = 512;
  static constexpr std::uint64_t kRunning = 24;
  static constexpr std::int64_t kPrompt = 8;

  struct Request {
    RequestId id = 0;
    std::int64_t tokens = 0;
    std::int64_t computed = 0;
    std::int64_t end = 0;
    std::vector<BlockId> blocks;
  };

  BlockId take() {
    const BlockId block = free_.front();
    free_.pop_front();
    return block;
  }
  void give_back(Request& request) {
    for (const BlockId block : request.blocks) free_.push_back(block);
    counted += allocations_of([&] { ledger_.forget({request.blocks.data(), 1}); });
    request.blocks.clear();
  }
  void take_blocks(Request& request) {
    while (std::ssize(request.blocks) * kBlock < request.tokens) request.blocks.push_back(take());
  }

  void admit(Request& request, std::int64_t end) {
    request.id = RequestId(++requests_);
    request.tokens = kPrompt;
    request.end = end;
    take_blocks(request);
    request.computed = request.id.value() % 3 == 0 ? kBlock : 0;
    const Admission admission{.request = request.id,
                              .num_tokens = kPrompt,
                              .placement = {request.blocks, request.computed},
                              .wants_rows = request.id.value() % 5 != 0};
    counted += allocations_of([&] { ledger_.admit(admission); });
  }

  void replace(Request& request) {
    if (request.id.value() % 2 == 0) {
      (void)ledger_.finish(request.id, request.tokens);
    } else {
      (void)ledger_.abort(request.id);
    }
    give_back(request);
    admit(request, 48);
  }

  void preempt(Request& request) {
    counted += allocations_of([&] { ledger_.preempt(request.id); });
    give_back(request);
    take_blocks(request);
    request.computed = 0;
    const Placement placement{request.blocks, 0};
    counted += allocations_of([&] { ledger_.resume(request.id, placement); });
  }

  void decode(Request& request) {
    std::size_t known = request.blocks.size();
    take_blocks(request);
    counted += allocations_of([&] {
      ledger_.schedule(step_, request.id, {request.computed, request.tokens},
                       std::span(request.blocks).subspan(known));
      ledger_.accept(step_, request.id, request.tokens + 1);
    });
    request.computed = request.tokens++;
  }

  Ledger ledger_{kBlocks, kBlock};
  std::vector<Request> running_;
  std::deque<BlockId> free_;
  std::uint64_t requests_ = 0;
  Step step_ = 0;
};

TEST(LedgerAllocations, ASteadyStreamOfRequestsNeedsNone) {
  SteadyEngine engine;
  for (int i = 0; i < 5000; ++i) engine.step();
  engine.counted = 0;
  for (int i = 0; i < 5000; ++i) engine.step();
  EXPECT_EQ(engine.counted, 0);
}

// Steps lie over the drafts of those before them, and it is not said which stand, or only of some.
TEST(LedgerAllocations, StepsWithDraftsNeedNoneWhetherOrNotTheyAreAccepted) {
  std::vector<BlockId> blocks(512);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i);
  for (const Drafts drafts : {Drafts::chain, Drafts::tree}) {
    for (const std::int64_t accepted : {1, 3, 10'000}) {
      SCOPED_TRACE(accepted);
      Ledger ledger(512, 4, drafts);
      ledger.admit({.request = 1, .num_tokens = 1, .placement = {blocks, 0}});
      const auto decode = [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) {
          ledger.schedule(Step(i), 1, {i - 1, i + 3});
          if (i % accepted == 0) ledger.accept(Step(i), 1, i + 1);
        }
      };
      decode(1, 1000);
      EXPECT_EQ(allocations_of([&] { decode(1000, 2000); }), 0);
    }
  }
}

TEST(LedgerAllocations, APlanNeedsOneForEachOfItsLists) {
  Ledger ledger(64, 4);
  std::vector<BlockId> blocks(64);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i);
  ledger.admit({.request = 1, .num_tokens = 256, .placement = {blocks, 0}});
  ledger.schedule(1, 1, {0, 256});
  EXPECT_EQ(allocations_of([&] { (void)ledger.rows_since(1, 0); }), 3);
  EXPECT_EQ(allocations_of([&] { (void)ledger.finish(1, 257); }), 3);
}

TEST(RoutesViewAllocations, DetachingWhatIsOwnedNeedsNone) {
  RoutesView view(test::sample_routes(ModelShape::uniform(2, 2, 16), {5, 8}));
  EXPECT_EQ(allocations_of([&] { (void)std::move(view).detach(); }), 0);
}

using ReaderAllocations = test::EndpointTest;

TEST_F(ReaderAllocations, TakingStepsInAndReadingThemNeedsNone) {
  ChannelProducer producer(endpoint);
  const auto reader = make_device_reader(endpoint);
  const std::vector<Slot> slots{3, 4, 9};
  std::vector<std::byte> rows(slots.size() * endpoint.shape.row_bytes());
  std::vector<RowState> states(slots.size());
  for (Step step = 1; step <= 20; ++step) {
    test::send_step(producer, endpoint.shape, step, slots);
    const StepWindow window{step, step};
    EXPECT_EQ(allocations_of([&] {
                reader->wait_for(step, Milliseconds(60'000));
                reader->read(slots, {&window, 1}, rows, states);
              }),
              0);
    EXPECT_EQ(states, std::vector<RowState>(3, RowState::present));
  }
}

// A device's callback cannot tell a caller that there is no memory: the step has failed all the
// same.
TEST_F(ReaderAllocations, AStepThatFailsIsHandedOverWithoutThem) {
  const auto device = make_seeded_device(1);
  const auto stream = device->make_stream();
  const Buffer slots = device->allocate(4 * sizeof(Slot));
  stream->fill(slots.data(), 0, slots.size());
  Capturer capturer(make_device_transport(*device, endpoint));
  for (const int layer : endpoint.shape.moe_layers()) capturer.bind(layer);
  const auto reader = make_device_reader(endpoint);
  stream->synchronize();

  device->hold(*stream, true);
  capturer.begin_step({.step = 1, .num_tokens = 4}, *stream);  // and no layer is captured
  capturer.publish(slots.as<const Slot>(), *stream);
  refuses = true;
  while (device->step()) {
  }
  refuses = false;
  const auto failures = capturer.take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].reason().find("no memory to say what"), std::string::npos);
  EXPECT_THROW(reader->wait_for(1, Milliseconds(0)), StepFailed);
}

}  // namespace
}  // namespace moetap
