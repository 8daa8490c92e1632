// A mad neighbour: while both ends of a transport work, in processes of their own, another process
// writes random bytes over their shared memory. What is promised then: every call returns or
// throws in bounded time and no process crashes; and where only the control block of the `shm`
// transport or the counters of a ring are hit, no row is wrong either: the stamps, with the last
// step among them, and the marks of records say for themselves what they are.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/shm_test.h"
#include "test/ipc/step_records.h"

namespace moetap {
namespace {

using Clock = std::chrono::steady_clock;
using test::ChildProcess;
using test::SharedObject;

constexpr int kSeeds = 6;
constexpr int kCalls = 400;  // of the reader, for each seed
constexpr Milliseconds kTimeout{20};

class Scribbler : public test::ShmTest, public testing::WithParamInterface<int> {
 protected:
  Scribbler() { endpoint.timeout = kTimeout; }

  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()); }

  // Writes over bytes in [from, from + most) of the segment until it is killed; half of them at
  // its beginning.
  [[noreturn]] void scribble(const std::string& name, std::size_t from, std::size_t most) {
    std::mt19937_64 random(seed());
    const Segment segment = Segment::open(name);
    const auto bytes = segment.bytes().subspan(from, std::min(most, segment.bytes().size() - from));
    for (std::uint64_t written = 0;;) {
      const std::size_t reach =
          random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), 8192) : bytes.size();
      auto& byte = reinterpret_cast<std::uint8_t&>(bytes[random() % reach]);
      std::atomic_ref(byte).store(static_cast<std::uint8_t>(random()), std::memory_order_relaxed);
      if (random() % 8 == 0) sched_yield();
      if (++written == kCalls) underway.raise();
    }
  }

  // As many calls as are asked for, each of which returns or throws in time. `renew` makes the
  // thing that is called; it is used on after errors, and now and then made anew.
  template <class Renew, class Use>
  static void call_often(Renew&& renew, Use&& use, int calls) {
    decltype(renew()) made{};
    for (int i = 0; i < calls; ++i) {
      const auto start = Clock::now();
      try {
        if (!made) made = renew();
        use(*made, static_cast<Step>(i) + 1);
      } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()), "");
        if (i % 16 == 0) made = {};
      }
      EXPECT_LT(Clock::now() - start, test::kPatience) << "a call that hangs";
    }
  }

  test::Signal underway;  // the neighbour has written to the segment a number of times

  std::vector<Slot> some_slots(std::mt19937_64& random) const {
    std::vector<Slot> slots(static_cast<std::size_t>(endpoint.max_tokens));
    std::iota(slots.begin(), slots.end(),
              static_cast<Slot>(
                  random() % static_cast<std::uint64_t>(endpoint.num_slots - endpoint.max_tokens)));
    return slots;
  }
};

// The worker's end stays, as an engine's does; what a call throws does not end it.
template <class Publish>
void work(SharedObject<std::atomic<bool>>& stop, Publish&& publish) {
  for (Step step = 1; !*stop; ++step) {
    try {
      publish(step);
    } catch (const std::exception&) {
    }
  }
}

class ShmScribbler : public Scribbler {
 protected:
  // Reads under a neighbour that hits the first `most` bytes of the segment.
  void read_while_scribbled(std::size_t most, bool rows_must_be_right) {
    SharedObject<std::atomic<bool>> stop;
    test::Signal made;
    ChildProcess worker([&] {
      ShmWriter writer(endpoint);
      made.raise();
      std::mt19937_64 random(seed());
      work(stop, [&](Step step) {
        const auto slots = some_slots(random);
        writer.publish(step, unmarked(slots), test::rows_of(endpoint.shape, step, slots));
      });
    });
    made.wait();
    // Where it may find the lock file is in the control block too, so it is attached before.
    const auto attached = make_shm_reader(endpoint);
    ChildProcess neighbour([&] { scribble(buffer_name(endpoint), 0, most); });
    underway.wait();
    std::mt19937_64 random(seed() + 1);
    call_often([&] { return attached.get(); },
               [&](SlotReadTransport& reader, Step) { use(reader, random, rows_must_be_right); },
               kCalls);
    call_often([&] { return make_shm_reader(endpoint); },
               [&](SlotReadTransport& reader, Step) { use(reader, random, rows_must_be_right); },
               kCalls / 10);
    *stop = true;
    EXPECT_EQ(worker.join(), 0);
    EXPECT_EQ(waitpid(neighbour.pid(), nullptr, WNOHANG), 0) << "the neighbour has crashed";
  }

  void use(SlotReadTransport& reader, std::mt19937_64& random, bool rows_must_be_right) {
    const auto slots = some_slots(random);
    const test::Read found = test::read(reader, slots);
    for (std::size_t i = 0; rows_must_be_right && i < slots.size(); ++i) {
      if (found.states[i] == RowState::present) expect_some_steps_row(found, i, slots[i]);
    }
    reader.wait_for(Step(random() % 100), Milliseconds(1));
  }

  // Rows of row_of() repeat with the step: there are as many different ones as experts.
  void expect_some_steps_row(const test::Read& found, std::size_t i, Slot slot) const {
    const std::size_t bytes = endpoint.shape.row_bytes();
    const auto begin = found.rows.begin() + static_cast<std::ptrdiff_t>(i * bytes);
    const std::vector<std::byte> row(begin, begin + static_cast<std::ptrdiff_t>(bytes));
    bool known = false;
    for (Step step = 1; step <= 16; ++step) {
      known = known || row == test::row_of(endpoint.shape, step, slot);
    }
    EXPECT_TRUE(known) << "a row of slot " << slot << " that was not written";
  }
};

TEST_P(ShmScribbler, OverTheControlBlockMakesNoRowWrong) {
  read_while_scribbled(sizeof(ShmControl), true);
}

TEST_P(ShmScribbler, OverEverythingCrashesNobody) {
  read_while_scribbled(std::numeric_limits<std::size_t>::max(), false);
}

TEST_P(ShmScribbler, OverTheWireLayoutCrashesNobody) {
  endpoint.layout = ShmLayout::wire;
  read_while_scribbled(std::numeric_limits<std::size_t>::max(), false);
}

class RingScribbler : public Scribbler {
 protected:
  // One kind of reader after the other, each as long as it takes to send all records.
  template <class Use>
  void read_while_scribbled(std::function<void(ChannelProducer&, Step)> send, Use&& use) {
    SharedObject<std::atomic<bool>> stop;
    test::Signal made;
    ChildProcess worker([&] {
      ChannelProducer producer(endpoint);
      made.raise();
      work(stop, [&](Step step) { send(producer, step); });
    });
    made.wait();
    // Half of the neighbours spare the description at the start, so that readers attach again.
    const std::size_t from = seed() % 2 == 0 ? offsetof(RingControl, committed) : 0;
    ChildProcess neighbour(
        [&] { scribble(ring_name(endpoint), from, std::numeric_limits<std::size_t>::max()); });
    underway.wait();
    use();
    *stop = true;
    EXPECT_EQ(worker.join(), 0);
    EXPECT_EQ(waitpid(neighbour.pid(), nullptr, WNOHANG), 0) << "the neighbour has crashed";
  }
};

TEST_P(RingScribbler, UnderAReaderBySlotCrashesNobody) {
  std::mt19937_64 random(seed());
  const auto send = [&](ChannelProducer& producer, Step step) {
    test::send_step(producer, endpoint.shape, step, some_slots(random));
  };
  read_while_scribbled(send, [&] {
    call_often([&] { return make_device_reader(endpoint); },
               [&](SlotReadTransport& reader, Step step) {
                 test::read(reader, some_slots(random));
                 reader.wait_for(reader.poll() + static_cast<int>(step.value() % 3),
                                 Milliseconds(1));
               },
               kCalls);
  });
}

TEST_P(RingScribbler, UnderAReaderByRequestCrashesNobody) {
  const auto send = [&](ChannelProducer& producer, Step step) {
    const auto kind = std::array{Descriptor::Kind::request, Descriptor::Kind::request_end,
                                 Descriptor::Kind::step_done}[step.value() % 3];
    const auto record = producer.acquire();
    if (kind == Descriptor::Kind::request) std::ranges::fill(record, std::byte{0});
    producer.commit(
        {.kind = kind, .step = step, .num_tokens = 4, .request = RequestId(step.value() / 3)});
  };
  read_while_scribbled(send, [&] {
    std::vector<std::byte> rows(4 * endpoint.shape.row_bytes());
    std::vector<RowState> states(4);
    call_often(
        [&] { return make_request_reader(endpoint); },
        [&](RequestReadTransport& reader, Step step) {
          reader.wait_for(reader.poll() + static_cast<int>(step.value() % 3), Milliseconds(1));
          reader.take(RequestId(reader.poll().value() / 3), {0, 4}, rows, states, Milliseconds(1));
        },
        kCalls);
  });
}

// Only the counters: then no row is wrong either, since each record says which one it is. The
// neighbour makes the ring look empty again and again, so that the worker gets records that are
// being read, and fuller than it is.
class CounterScribbler : public Scribbler {
 protected:
  CounterScribbler() {
    endpoint.shape = ModelShape::uniform(64, 8, 256);  // long enough to change on the way
    endpoint.max_tokens = 64;
    endpoint.num_slots = 256;
    endpoint.ring_depth = 2;
  }

  [[noreturn]] void write_over_the_counters() const {
    const Segment segment = Segment::open(ring_name(endpoint));
    RingControl& control = Ring(segment.bytes(), endpoint).control();
    std::mt19937_64 random(seed());
    for (;;) {
      // Numbers that both ends take for good ones, so that they go on.
      if (random() % 4 == 0) {
        control.committed = *handed_over + random() % 2;
      } else {
        control.released = *handed_over - std::min<std::uint64_t>(random() % 2, *handed_over);
      }
      for (std::uint64_t i = random() % 512; i > 0; --i) control.committed.load();
    }
  }

  // Each row must be of the step that its stamp names.
  void expect_right(SlotReadTransport& reader) {
    std::vector<Slot> slots(static_cast<std::size_t>(endpoint.num_slots));
    std::iota(slots.begin(), slots.end(), Slot{0});
    std::vector<Step> steps(slots.size());
    const test::Read found = test::read(reader, slots);
    reader.stamps(slots, steps);
    const std::size_t bytes = endpoint.shape.row_bytes();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (found.states[i] != RowState::present) continue;
      ++rows;
      const auto row = std::span(found.rows).subspan(i * bytes, bytes);
      ASSERT_TRUE(std::ranges::equal(row, test::row_of(endpoint.shape, steps[i], slots[i])))
          << "slot " << slots[i] << " of step " << steps[i];
    }
  }

  SharedObject<std::atomic<std::uint64_t>> handed_over;  // as many records really were
  int rows = 0;
};

TEST_P(CounterScribbler, MakesNoRowWrong) {
  SharedObject<std::atomic<bool>> stop;
  test::Signal made;
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    made.raise();
    std::mt19937_64 random(seed());
    work(stop, [&](Step step) {
      const auto slots = some_slots(random);
      const auto rows = test::rows_of(endpoint.shape, step, slots);
      const auto record = test::write_record(producer.acquire(), endpoint.shape, step, slots);
      std::ranges::copy(rows, record.rows.begin());
      producer.commit(test::describe(Descriptor::Kind::step, step, slots.size()));
      ++*handed_over;
    });
  });
  made.wait();
  ChildProcess neighbour([&] { write_over_the_counters(); });
  int overtaken = 0;
  const auto patience = Clock::now() + test::kPatience;
  auto enough = [&, i = 0]() mutable {
    return HasFatalFailure() || Clock::now() > patience ||
           (++i > kCalls / 10 && overtaken > 0 && rows > 0);
  };
  while (!enough()) {
    try {
      const auto reader = make_device_reader(endpoint);
      for (int call = 0; call < 8; ++call) {
        try {
          reader->wait_for(reader->poll() + 1, Milliseconds(1));
        } catch (const TimeoutError&) {
        } catch (const MismatchError&) {
          ++overtaken;
        }
        expect_right(*reader);
      }
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  }
  *stop = true;
  EXPECT_EQ(worker.join(), 0);
  EXPECT_GT(rows, 0);
  EXPECT_GT(overtaken, 0) << "the counters did no harm";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CounterScribbler, testing::Range(1, kSeeds + 1));
INSTANTIATE_TEST_SUITE_P(Seeds, ShmScribbler, testing::Range(1, kSeeds + 1));
INSTANTIATE_TEST_SUITE_P(Seeds, RingScribbler, testing::Range(1, kSeeds + 1));

}  // namespace
}  // namespace moetap
