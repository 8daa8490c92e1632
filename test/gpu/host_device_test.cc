// What only the host device does: its memory, its limits, its threads.
#include <moetap/error.h>
#include <moetap/host_device.h>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "test/gpu/device_test.h"
#include "test/ipc/child_process.h"

namespace moetap::test {
namespace {

struct Throw {
  MOETAP_DEVICE void operator()(Block) const { throw std::runtime_error("a kernel threw"); }
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(OpenDevice, FindsTheHost) {
  for (const char* name : {"host", "inline"}) EXPECT_EQ(open_device(name)->name(), name);
}

TEST(OpenDevice, ListsTheChoicesForAnUnknownName) {
  for (const char* name :
       {"", "gpu", "host:0", "Host", "cuda1", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    EXPECT_THROW(open_device(name), ArgumentError) << name;
    const std::string message = message_of([&] { (void)open_device(name); });
    EXPECT_NE(message.find(std::string("'") + name + "'"), message.npos) << message;
    EXPECT_NE(message.find("'auto', 'host', 'inline', 'cuda' or 'cuda:N'"), message.npos)
        << message;
  }
}

class HostMemory : public DeviceTest {
 protected:
  std::unique_ptr<Stream> stream = device->make_stream();
};

TEST_P(HostMemory, IsNeverZeroAtFirst) {
  const Buffer memory = device->allocate(1000);
  const Buffer pinned = device->allocate_pinned(1000);
  EXPECT_EQ(std::count(memory.data(), memory.data() + 1000, std::byte{0}), 0);
  EXPECT_EQ(std::count(pinned.data(), pinned.data() + 1000, std::byte{0}), 0);
}

TEST_P(HostMemory, IsAligned) {
  std::vector<Buffer> kept;
  for (std::size_t bytes : {1, 100, 5000, 70000}) {
    kept.push_back(device->allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.back().data()) % 256, 0);
    kept.push_back(device->allocate_pinned(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.back().data()) %
                  static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)),
              0);
  }
}

TEST_P(HostMemory, OfNoBytesIsEmpty) {
  EXPECT_EQ(device->allocate(0).data(), nullptr);
  EXPECT_EQ(device->allocate_pinned(0).size(), 0);
  EXPECT_EQ(device->pin({}).data(), nullptr);
  const Buffer memory = device->allocate(64);
  { const Buffer nothing = device->pin({memory.data(), 0}); }
  stream->fill(memory.data(), 0, 64);
}

TEST_P(HostMemory, ThatCannotBeHadIsAnErrorWithTheSize) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers end the program where operator new would return null";
#endif
  const std::size_t bytes = std::size_t{1} << 60;
  EXPECT_THROW(device->allocate(bytes), SystemError);
  EXPECT_NE(message_of([&] { device->allocate(bytes); }).find(std::to_string(bytes)),
            std::string::npos);
}

TEST_P(HostMemory, MovesWithItsBuffer) {
  Buffer first = device->allocate(64);
  std::byte* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): it is empty then
  EXPECT_EQ(first.size(), 0);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 64);
  second = device->allocate(32);
  EXPECT_EQ(second.size(), 32);
  EXPECT_THROW(stream->fill(data, 0, 64), ArgumentError);  // the first 64 bytes were freed
}

TEST_P(HostMemory, IsTheOnlyMemoryThatCopiesTake) {
  const Buffer inside = device->allocate(64);
  std::byte outside[64] = {};
  EXPECT_THROW(stream->copy(inside.data(), outside, 64), ArgumentError);
  EXPECT_THROW(stream->copy(outside, inside.data(), 64), ArgumentError);
  EXPECT_THROW(stream->fill(outside, 0, 64), ArgumentError);
  EXPECT_THROW(stream->copy(inside.data(), nullptr, 64), ArgumentError);
  stream->copy(inside.data(), outside, 0);
  stream->synchronize();
}

// CUDA would block until it is done, and a program that counts on a queue may then stand still.
TEST_P(HostMemory, IsNotCopiedToHostMemory) {
  const Buffer pinned = device->allocate_pinned(64);
  std::vector<std::byte> owned(64);
  const Buffer also_pinned = device->pin(owned);
  EXPECT_THROW(stream->copy(pinned.data(), pinned.data() + 32, 32), ArgumentError);
  EXPECT_THROW(stream->copy(pinned.data(), also_pinned.data(), 64), ArgumentError);
  stream->copy(pinned.data(), nullptr, 0);
}

TEST_P(HostMemory, IsNotLeftByACopy) {
  const Buffer from = device->allocate(64);
  const Buffer to = device->allocate(64);
  stream->copy(to.data() + 32, from.data() + 32, 32);
  EXPECT_THROW(stream->copy(to.data() + 32, from.data(), 33), ArgumentError);
  EXPECT_THROW(stream->copy(to.data(), from.data() + 1, 64), ArgumentError);
  EXPECT_THROW(stream->fill(to.data() - 1, 0, 2), ArgumentError);
  EXPECT_THROW(stream->fill(to.data() + 1, 0, SIZE_MAX), ArgumentError);
  const std::string message = message_of([&] { stream->fill(to.data() + 60, 0, 5); });
  EXPECT_NE(message.find("5 bytes at offset 60 of a buffer of 64 bytes"), message.npos) << message;
}

TEST_P(HostMemory, MayBeSomeoneElses) {
  std::vector<std::byte> owned(100);
  {
    const Buffer pinned = device->pin(std::span(owned).subspan(10, 80));
    stream->fill(pinned.data(), 7, 80);
    EXPECT_THROW(stream->fill(owned.data() + 9, 7, 80), ArgumentError);
  }
  EXPECT_EQ(std::count(owned.begin(), owned.end(), std::byte{7}), 80);
  EXPECT_THROW(stream->fill(owned.data() + 10, 7, 80), ArgumentError);
  const Buffer again = device->pin(owned);
}

TEST_P(HostMemory, IsNotPinnedTwice) {
  std::vector<std::byte> owned(100);
  const std::span<std::byte> all(owned);
  const Buffer pinned = device->pin(all.subspan(10, 80));
  EXPECT_THROW(device->pin(all), ArgumentError);
  EXPECT_THROW(device->pin(all.subspan(0, 11)), ArgumentError);
  EXPECT_THROW(device->pin(all.subspan(89)), ArgumentError);
  EXPECT_THROW(device->pin(all.subspan(40, 1)), ArgumentError);
  const Buffer before = device->pin(all.subspan(0, 10));
  const Buffer after = device->pin(all.subspan(90));
}

MOETAP_ON_EVERY_HOST_DEVICE(HostMemory);

class HostCallback : public DeviceTest {};

TEST_P(HostCallback, MustNotCallTheDevice) {
  struct Scene {
    Stream& stream;
    Event& event;
    Buffer& memory;
    int refused = 0;

    void refuses(const std::function<void()>& call) {
      try {
        call();
      } catch (const StateError&) {
        ++refused;
      }
    }
  };
  auto stream = device->make_stream();
  auto other = device->make_stream();
  auto event = device->make_event();
  Buffer memory = device->allocate(64);
  Scene scene{*other, *event, memory};
  stream->call(
      [](void* argument) {
        auto& s = *static_cast<Scene*>(argument);
        s.refuses([&] { s.stream.fill(s.memory.data(), 0, 64); });
        s.refuses([&] { s.stream.record(s.event); });
        s.refuses([&] { s.stream.wait(s.event); });
        s.refuses([&] { s.stream.synchronize(); });
        s.refuses([&] { (void)s.stream.idle(); });
        s.refuses([&] { s.event.synchronize(); });
        s.refuses([&] { (void)s.event.done(); });
      },
      &scene);
  stream->synchronize();
  EXPECT_EQ(scene.refused, 7);
}

TEST_P(HostCallback, MustNotFreeMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto stream = device->make_stream();
        Buffer memory = device->allocate(64);
        stream->call([](void* buffer) { *static_cast<Buffer*>(buffer) = Buffer(); }, &memory);
        stream->synchronize();
      },
      "freeing memory from a stream's callback");
}

TEST_P(HostCallback, MustNotThrow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto stream = device->make_stream();
        stream->call([](void*) { throw std::runtime_error("a callback threw"); }, nullptr);
        stream->synchronize();
      },
      "a callback threw");
}

TEST_P(HostCallback, KernelsMustNotThrowEither) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto stream = device->make_stream();
        stream->launch(Throw{}, 1);
        stream->synchronize();
      },
      "a kernel threw");
}

MOETAP_ON_EVERY_HOST_DEVICE(HostCallback);

// What an engine on the CPU counts on: it overwrites what it had captured.
TEST(InlineDevice, RunsEachCallsWorkBeforeItReturnsInTheCallingThread) {
  const auto device = make_inline_device();
  const auto stream = device->make_stream();
  const auto event = device->make_event();
  std::int64_t engines = 1;
  std::int64_t ours = 0;
  stream->launch(Assign{&ours, &engines}, 1);
  engines = 2;
  EXPECT_EQ(ours, 1);

  const Buffer memory = device->allocate(64);
  stream->fill(memory.data(), 7, 64);
  EXPECT_EQ(memory.data()[63], std::byte{7});

  std::thread::id ran_in;
  stream->call([](void* id) { *static_cast<std::thread::id*>(id) = std::this_thread::get_id(); },
               &ran_in);
  EXPECT_EQ(ran_in, std::this_thread::get_id());

  stream->begin_capture();
  stream->launch(Set{&ours, 3}, 1);
  const auto graph = stream->end_capture();
  EXPECT_EQ(ours, 1);
  stream->launch(*graph);
  EXPECT_EQ(ours, 3);
  stream->record(*event);
  EXPECT_TRUE(event->done() && stream->idle());
}

// The ring holds 1024 operations; the caller is held at the next one, and nothing is lost.
TEST(HostStreams, HoldTheCallerWhileTheirQueueIsFull) {
  auto device = make_host_device();
  auto stream = device->make_stream();
  std::vector<int> order;
  struct Entry {
    std::vector<int>* order;
    int number;
  };
  constexpr int kOperations = 3000;
  std::vector<Entry> entries;
  entries.reserve(kOperations);
  for (int i = 0; i < kOperations; ++i) entries.push_back({&order, i});

  auto delay = std::make_unique<Delay>(*device, *stream);
  std::atomic<int> queued = 0;
  int queued_when_held = 0;
  std::thread opener([&] {  // when the caller gets no further
    for (int last = -1; last != queued;) {
      last = queued;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    queued_when_held = queued;
    delay->release();
  });
  for (Entry& entry : entries) {
    stream->call(
        [](void* argument) {
          const auto* e = static_cast<Entry*>(argument);
          e->order->push_back(e->number);
        },
        &entry);
    ++queued;
  }
  opener.join();
  delay.reset();
  EXPECT_LE(queued_when_held, 1024);
  EXPECT_EQ(order.size(), kOperations);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// Threads that each use a stream of their own and share events: for the thread sanitizer.
TEST(HostStreams, AreUsedByManyThreadsAtOnce) {
  auto device = make_host_device();
  auto shared = device->make_event();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      auto stream = device->make_stream();
      auto own = device->make_event();
      for (int i = 0; i < 200; ++i) {
        const Buffer memory = device->allocate(256);
        stream->wait(*shared);
        stream->fill(memory.data(), 1, memory.size());
        stream->record(*shared);
        stream->record(*own);
        if (i % 10 == 0) own->synchronize();
        if (i % 10 == 5) shared->synchronize();
      }
      stream->synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(shared->done());
}

// A waiter that slept is woken: pauses between operations are longer than anyone spins.
TEST(HostStreams, WakeWhoSleeps) {
  auto device = make_host_device();
  auto a = device->make_stream();
  auto b = device->make_stream();
  auto event = device->make_event();
  for (int i = 0; i < 50; ++i) {
    auto pause = [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(300)); };
    a->call(pause, nullptr);
    a->record(*event);
    b->wait(*event);
    b->record(*event);
    a->wait(*event);
    a->synchronize();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_TRUE(b->idle());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A sanitizer needs more address space than is allowed here.
TEST(HostStreams, AndMemoryThatTheSystemRefusesNameTheLimit) {
  ChildProcess child([] {
    const auto device = make_host_device();
    const rlimit space{std::size_t{200} << 20, RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &space), 0);
    pthread_attr_t attributes;  // stacks larger than any that may be left of an earlier thread
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{256} << 20);
    ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
    for (const std::string& message : {message_of([&] { device->make_stream(); }), message_of([&] {
                                         device->allocate(std::size_t{256} << 20);
                                       })}) {
      EXPECT_NE(message.find("209715200 bytes of address space"), std::string::npos) << message;
      EXPECT_NE(message.find("ulimit -v"), std::string::npos) << message;
    }
  });
  EXPECT_EQ(child.join(), 0);
}
#endif

}  // namespace
}  // namespace moetap::test

MOETAP_DEFINE_HOST_KERNEL(moetap::test::Throw);
