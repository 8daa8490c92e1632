// The wire-compatible layout, with Python processes that do as vLLM does at the other end.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/table/wire_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::kPatience;
using test::message_of;
using test::read;
using test::rows_of;
using test::Signal;
using test::state_of;

using Slots = std::vector<Slot>;

// wire_peer.py with pipes to its standard input and output.
class PythonPeer {
 public:
  explicit PythonPeer(const Endpoint& endpoint)
      : child_([&] {
          dup2(to_[0], STDIN_FILENO);
          dup2(from_[1], STDOUT_FILENO);
          for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) close(fd);
          const std::string rank = std::to_string(endpoint.dp_rank);
          const std::string slots = std::to_string(endpoint.num_slots);
          const std::string layers = std::to_string(endpoint.shape.num_hidden_layers());
          const std::string top_k = std::to_string(endpoint.shape.top_k());
          execlp("python3", "python3", WIRE_PEER, endpoint.instance.c_str(), rank.c_str(),
                 slots.c_str(), layers.c_str(), top_k.c_str(), nullptr);
          throw std::runtime_error("cannot run python3");
        }) {
    EXPECT_EQ(answer(), "ready");
  }
  ~PythonPeer() {
    for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) close(fd);
  }

  std::string ask(const std::string& command) {
    const std::string line = command + "\n";
    EXPECT_EQ(write(to_[1], line.data(), line.size()), std::ssize(line));
    return answer();
  }
  std::vector<int> row(Slot slot) { return numbers("read " + std::to_string(slot.value())); }
  std::vector<int> layer(Slot slot, int layer) {
    return numbers("layer " + std::to_string(slot.value()) + " " + std::to_string(layer));
  }
  void set_row(Slot slot, const std::vector<int>& ids) {
    std::string command = "write " + std::to_string(slot.value());
    for (const int id : ids) command += " " + std::to_string(id);
    EXPECT_EQ(ask(command), "done");
  }
  void kill() { child_.kill(); }

 private:
  std::vector<int> numbers(const std::string& command) {
    std::istringstream words(ask(command));
    return {std::istream_iterator<int>(words), {}};
  }
  std::string answer() {
    std::string line;
    for (char c = 0;;) {
      pollfd readable{from_[0], POLLIN, 0};
      if (poll(&readable, 1, test::kPatienceMs) != 1 || ::read(from_[0], &c, 1) != 1) {
        ADD_FAILURE() << "python3 does not answer";
        return line;
      }
      if (c == '\n') return line;
      line += c;
    }
  }

  struct Pipe {
    int ends[2];
    Pipe() { EXPECT_EQ(pipe(ends), 0); }
    int operator[](int i) const { return ends[i]; }
  };
  Pipe to_;
  Pipe from_;
  ChildProcess child_;
};

class WireTest : public test::ShmTest {
 protected:
  WireTest() { endpoint.layout = ShmLayout::wire; }

  const std::string file() const { return "/dev/shm" + buffer_name(endpoint); }
  void publish(ShmWriter& writer, Step step, const test::Stored& slots) const {
    writer.publish(step, slots, rows_of(endpoint.shape, step, slots));
  }
  // As rows_of(), as wire ids.
  std::vector<int> ids_of(Step step, Slot slot) const {
    const auto narrow = test::row_of(endpoint.shape, step, slot);
    std::vector<int> ids;
    for (std::size_t i = 0; i < narrow.size(); i += id_bytes(endpoint.shape.id_type())) {
      ids.push_back(
          static_cast<int>(narrow[i]) |
          (id_bytes(endpoint.shape.id_type()) == 2 ? static_cast<int>(narrow[i + 1]) << 8 : 0));
    }
    return ids;
  }
  void expect_unverified(SlotReadTransport& reader, Step step, const Slots& slots) const {
    const auto got = read(reader, slots);
    for (const RowState state : got.states) EXPECT_EQ(state, RowState::unverified);
    EXPECT_EQ(got.rows, rows_of(endpoint.shape, step, slots));
  }
};

// New memory has zeros, and a router that picks one expert may pick expert 0.
TEST_F(WireTest, ARowThatWasNotWrittenIsMissingAlsoWhereTheRouterPicksOne) {
  endpoint.shape = ModelShape::uniform(2, 1, 8);
  ShmWriter writer(endpoint);
  EXPECT_EQ(state_of(*make_shm_reader(endpoint), 1), RowState::missing);
}

TEST_F(WireTest, PythonReadsWhatWePublish) {
  for (const int experts : {16, 300}) {  // narrow ids of one and of two bytes
    endpoint.shape = ModelShape::uniform(3, 2, experts);
    endpoint.dp_rank = experts;
    ShmWriter writer(endpoint);
    publish(writer, 1, {0, 7, 8, 9, 63});
    PythonPeer python(endpoint);
    EXPECT_EQ(python.ask("size"), std::to_string(64 * 6 * 4));
    for (const Slot slot : {Slot(0), Slot(7), Slot(8), Slot(9), Slot(63)})
      EXPECT_EQ(python.row(slot), ids_of(1, slot)) << slot;
    EXPECT_EQ(python.row(1), std::vector<int>(6, -1));
    publish(writer, 2, {8, ~9});
    EXPECT_EQ(python.row(8), ids_of(2, 8));
    EXPECT_EQ(python.row(9), std::vector<int>(6, -1));
    EXPECT_EQ(python.row(7), ids_of(1, 7));
  }
}

TEST_F(WireTest, WeReadWhatPythonWrites) {
  for (const int experts : {16, 300}) {
    endpoint.shape = ModelShape::uniform(3, 2, experts);
    endpoint.dp_rank = experts;
    PythonPeer python(endpoint);
    const auto reader = make_shm_reader(endpoint);
    python.set_row(5, ids_of(1, 5));
    python.set_row(63, ids_of(1, 63));
    expect_unverified(*reader, 1, {5, 63});
    EXPECT_EQ(reader->shape(), endpoint.shape);
    EXPECT_EQ(reader->num_slots(), endpoint.num_slots);
  }
}

// Models with dense layers: at the front (deepseek-v3), between (llama-4-maverick), all over
// (nemotron-3), at the end.
std::vector<ModelShape> shapes_with_dense_layers() {
  return {ModelShape({1, 2, 3}, 2, 16, 4), ModelShape({1, 3, 5}, 1, 128, 6),
          ModelShape({2, 3, 6, 9}, 3, 512, 12), ModelShape({0}, 8, 300, 3)};
}

TEST_F(WireTest, H33PythonReadsOurRowsByTheModelsLayers) {
  for (const ModelShape& shape : shapes_with_dense_layers()) {
    endpoint.shape = shape;
    ++endpoint.dp_rank;
    ShmWriter writer(endpoint);
    publish(writer, 1, {0, 7, 8, 63});
    PythonPeer python(endpoint);
    EXPECT_EQ(python.ask("size"),
              std::to_string(64 * shape.num_hidden_layers() * shape.top_k() * 4));
    const auto expect = [&](Slot slot, const std::vector<int>& ids) {
      std::size_t next = 0;
      for (int layer = 0; layer < shape.num_hidden_layers(); ++layer) {
        std::vector<int> right(static_cast<std::size_t>(shape.top_k()));
        if (std::ranges::binary_search(shape.moe_layers(), layer)) {
          std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(next), shape.top_k(),
                      right.begin());
          next += static_cast<std::size_t>(shape.top_k());
        }
        EXPECT_EQ(python.layer(slot, layer), right)
            << shape.to_string() << ", slot " << slot << ", layer " << layer;
      }
    };
    for (const Slot slot : {Slot(0), Slot(7), Slot(8), Slot(63)}) expect(slot, ids_of(1, slot));
    publish(writer, 2, {~8});
    writer.fail(3, unmarked(Slots{7}), "why");
    expect(8, std::vector<int>(shape.row_ids(), -1));
    expect(7, std::vector<int>(shape.row_ids(), -1));
    expect(0, ids_of(1, 0));
  }
}

TEST_F(WireTest, H33WeReadPythonsRowsByTheModelsLayers) {
  for (const ModelShape& shape : shapes_with_dense_layers()) {
    endpoint.shape = shape;
    ++endpoint.dp_rank;
    PythonPeer python(endpoint);
    const auto reader = make_shm_reader(endpoint);
    for (const Slot slot : {Slot(0), Slot(5), Slot(63)}) {
      const std::vector<int> ids = ids_of(1, slot);
      std::string command = "capture " + std::to_string(slot.value());
      std::size_t next = 0;
      for (const int layer : shape.moe_layers()) {
        command += " " + std::to_string(layer);
        for (int k = 0; k < shape.top_k(); ++k) command += " " + std::to_string(ids[next++]);
      }
      EXPECT_EQ(python.ask(command), "done");
    }
    expect_unverified(*reader, 1, {0, 5, 63});
    // What we put is where it looks for it.
    reader->put(2, Slots{6}, test::row_of(shape, 2, 6), {});
    expect_unverified(*reader, 2, {6});
    const std::vector<int> first = python.layer(6, shape.moe_layers().front());
    std::vector<int> right = ids_of(2, 6);
    right.resize(first.size());
    EXPECT_EQ(first, right);
  }
}

TEST_F(WireTest, H33WhateverIsInDenseLayersIsNotRead) {
  endpoint.shape = ModelShape({1, 3}, 2, 16, 5);
  PythonPeer python(endpoint);
  const auto reader = make_shm_reader(endpoint);
  python.set_row(5, {-1, 99, 3, 4, -7, 1 << 30, 5, 6, 255, -1});
  const auto got = read(*reader, Slots{5});
  EXPECT_EQ(got.states[0], RowState::unverified);
  EXPECT_EQ(got.rows, (std::vector{std::byte{3}, std::byte{4}, std::byte{5}, std::byte{6}}));
  python.set_row(5, {0, 0, -1, -1, 0, 0, -1, -1, 0, 0});
  EXPECT_EQ(state_of(*reader, 5), RowState::missing);
  python.set_row(5, {0, 0, 3, 4, 0, 0, 5, 16, 0, 0});
  const std::string message = message_of<RangeError>([&] { state_of(*reader, 5); });
  EXPECT_TRUE(contains(message, "slot 5, layer 3: expert id 16 ")) << message;
}

TEST_F(WireTest, H33ABufferOfMoeLayersOnlyIsRefused) {
  endpoint.shape = ModelShape({1, 2}, 2, 16, 3);
  PythonPeer python(endpoint);
  Endpoint other = endpoint;
  other.shape = ModelShape({0, 1}, 2, 16);
  other.timeout = Milliseconds(30);
  const std::string message = message_of<MismatchError>([&] { (void)make_shm_reader(other); });
  EXPECT_TRUE(contains(message, "2 hidden layers")) << message;
  EXPECT_THROW(ShmWriter{other}, MismatchError);
}

TEST_F(WireTest, AWriterAttachesToTheBufferThatPythonMadeAndErasesItsRows) {
  PythonPeer python(endpoint);
  python.set_row(4, ids_of(9, 4));
  ShmWriter writer(endpoint);
  publish(writer, 1, {5});
  EXPECT_EQ(python.row(5), ids_of(1, 5));
  EXPECT_EQ(python.row(4), std::vector<int>(6, -1));
}

TEST_F(WireTest, PythonAttachesToTheBufferThatWeMadeAndItsRowsReachOurReader) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  PythonPeer python(endpoint);
  python.set_row(4, ids_of(9, 4));
  expect_unverified(*reader, 9, {4});
}

TEST_F(WireTest, EachAccessExcludesPythons) {
  endpoint.timeout = Milliseconds(50);
  WireLock lock(directory.path() / ("vllm_routed_experts_" + endpoint.instance + "_0.lock"));
  lock.lock();
  EXPECT_THROW(ShmWriter{endpoint}, TimeoutError);
  lock.unlock();
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  PythonPeer python(endpoint);
  EXPECT_EQ(python.ask("try"), "free");
  lock.lock();
  EXPECT_EQ(python.ask("try"), "held");
  EXPECT_THROW(publish(writer, 1, {1}), TimeoutError);
  EXPECT_THROW(writer.fail(1, unmarked(Slots{1}), "why"), TimeoutError);
  EXPECT_THROW(state_of(*reader, 1), TimeoutError);
  lock.unlock();
  // The lock that vLLM takes is exclusive for reads too.
  lock.lock_shared();
  EXPECT_THROW(state_of(*reader, 1), TimeoutError);
  lock.unlock_shared();
  publish(writer, 1, {1});
  EXPECT_EQ(python.ask("try"), "free");
}

TEST_F(WireTest, ADeadWorkersBufferOfAnotherSizeIsMadeAnew) {
  Endpoint other = endpoint;
  other.num_slots = 32;
  Signal made;
  ChildProcess dead([&] {
    const ShmWriter writer(other);
    made.raise();
    pause();
  });
  made.wait();
  const Segment used = Segment::open(buffer_name(endpoint));
  dead.kill();
  EXPECT_EQ(std::filesystem::file_size(file()), 32u * 6 * 4);
  ShmWriter writer(endpoint);
  EXPECT_EQ(std::filesystem::file_size(file()), 64u * 6 * 4);
  EXPECT_THROW(ShmWriter{other}, OwnedError);
  EXPECT_EQ(std::filesystem::file_size(file()), 64u * 6 * 4);
}

TEST_F(WireTest, WhatPythonMadeStaysWhenAWriterGoesAndIsNotReplaced) {
  PythonPeer python(endpoint);
  { const ShmWriter writer(endpoint); }
  ASSERT_TRUE(std::filesystem::exists(file()));
  {
    ShmWriter writer(endpoint);
    publish(writer, 1, {5});
  }
  EXPECT_EQ(python.row(5), ids_of(1, 5));
  Endpoint other = endpoint;
  other.num_slots = 32;
  const std::string message = message_of<MismatchError>([&] { ShmWriter{other}; });
  EXPECT_TRUE(contains(message, std::to_string(64 * 6 * 4))) << message;
  EXPECT_TRUE(contains(message, std::to_string(32 * 6 * 4))) << message;
  EXPECT_TRUE(std::filesystem::exists(file()));
}

TEST_F(WireTest, H23WhatADeadWorkerMadeGoesWithTheNext) {
  Signal made;
  ChildProcess dead([&] {
    const ShmWriter writer(endpoint);
    made.raise();
    pause();
  });
  made.wait();
  const Segment used = Segment::open(buffer_name(endpoint));
  dead.kill();
  ASSERT_TRUE(std::filesystem::exists(file()));
  { const ShmWriter writer(endpoint); }
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(WireTest, H22SecondWriterIsAnErrorThatNamesTheFirst) {
  Signal created;
  ChildProcess first([&] {
    ShmWriter writer(endpoint);
    created.raise();
    pause();
  });
  created.wait();
  const std::string message = message_of<OwnedError>([&] { ShmWriter second(endpoint); });
  EXPECT_TRUE(contains(message, std::to_string(first.pid()))) << message;
}

TEST_F(WireTest, H20AnIdThatTheModelDoesNotHaveIsAnErrorAndNotData) {
  PythonPeer python(endpoint);
  const auto reader = make_shm_reader(endpoint);
  for (const int bad : {16, 256, 65536, -2, -1}) {
    python.set_row(5, {0, 1, 2, bad, 4, 5});
    const std::string message = message_of<RangeError>([&] { state_of(*reader, 5); });
    EXPECT_TRUE(contains(message, "slot 5, layer 1")) << message;
    EXPECT_TRUE(contains(message, "id " + std::to_string(bad) + " ")) << message;
  }
  python.set_row(5, std::vector<int>(6, -1));
  const auto got = read(*reader, Slots{5});
  EXPECT_EQ(got.states[0], RowState::missing);
  EXPECT_EQ(std::ranges::count(got.rows, std::byte{0xFF}), std::ssize(got.rows));
}

TEST_F(WireTest, H32RowsThatNobodyWroteAreMissing) {
  PythonPeer python(endpoint);
  const auto reader = make_shm_reader(endpoint);
  EXPECT_EQ(state_of(*reader, 5), RowState::missing);
  python.set_row(5, {0, 1, 2, 3, 0, 0});  // its writer died before the last layer
  EXPECT_EQ(state_of(*reader, 5), RowState::missing);
  python.set_row(5, {0, 1, 2, 3, 0, 4});
  EXPECT_EQ(state_of(*reader, 5), RowState::unverified);
}

TEST_F(WireTest, H32AnExpertThatIsPickedTwiceIsAnErrorUnlessTheModelRepeats) {
  PythonPeer python(endpoint);
  const auto reader = make_shm_reader(endpoint);
  python.set_row(5, {0, 1, 7, 7, 4, 5});
  const std::string message = message_of<ArgumentError>([&] { state_of(*reader, 5); });
  EXPECT_TRUE(contains(message, "slot 5, layer 1: expert 7 is picked twice")) << message;

  Endpoint repeats = endpoint;
  repeats.shape = endpoint.shape.with_repeated_experts();
  const auto other = make_shm_reader(repeats);
  EXPECT_EQ(state_of(*other, 5), RowState::unverified);
  EXPECT_EQ(state_of(*other, 6), RowState::unverified);  // as zeros may be what was picked
}

TEST_F(WireTest, RowsOfAFailedStepAreMissing) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  publish(writer, 1, {1, 2, 3});
  writer.fail(2, test::Stored{2, ~3, 64, -1000}, "why");
  expect_unverified(*reader, 1, {1});
  EXPECT_EQ(state_of(*reader, 2), RowState::missing);
  EXPECT_EQ(state_of(*reader, 3), RowState::missing);
}

TEST_F(WireTest, ABadPublishOrReadChangesNothing) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  publish(writer, 1, {1, 2});
  EXPECT_THROW(publish(writer, 2, {1, 64}), RangeError);
  EXPECT_THROW(publish(writer, 2, {1, 2, ~1}), ArgumentError);
  EXPECT_THROW(publish(writer, 2, Slots(9, 1)), RangeError);
  EXPECT_THROW(writer.publish(2, unmarked(Slots{1, 2}), rows_of(endpoint.shape, 2, Slots{1})),
               ArgumentError);
  EXPECT_THROW(publish(writer, 1, {1}), ArgumentError);
  expect_unverified(*reader, 1, {1, 2});
  publish(writer, 2, {2, 1});  // a slot of a refused step is not taken for one that came twice
  EXPECT_THROW(state_of(*reader, 64), RangeError);
  EXPECT_THROW(reader->wait_for(2, kPatience), StateError);
  EXPECT_EQ(reader->poll(), Step(0));
}

TEST_F(WireTest, AReaderWaitsForABufferOfItsSize) {
  Endpoint hasty = endpoint;
  hasty.timeout = Milliseconds(30);
  std::string message = message_of<TimeoutError>([&] { (void)make_shm_reader(hasty); });
  EXPECT_TRUE(contains(message, buffer_name(endpoint))) << message;

  Endpoint other = endpoint;
  other.num_slots = 32;
  {
    // No owner of it is known, so a worker may still replace it.
    ChildProcess dead([&] {
      const ShmWriter writer(other);
      _exit(0);
    });
    ASSERT_EQ(dead.join(), 0);
    message = message_of<MismatchError>([&] { (void)make_shm_reader(hasty); });
    EXPECT_TRUE(contains(message, std::to_string(64 * 6 * 4))) << message;
    EXPECT_TRUE(contains(message, std::to_string(32 * 6 * 4))) << message;
  }
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    publish(writer, 1, {1});
    pause();
  });
  const auto reader = make_shm_reader(endpoint);
  other.timeout = std::chrono::hours(24);
  // A living owner's is not going to be replaced.
  EXPECT_THROW(make_shm_reader(other), MismatchError);
}

}  // namespace
}  // namespace moetap
