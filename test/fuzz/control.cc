// A `shm` segment, native or wire, whose bytes anyone may have written: both ends go on using it,
// and meet nothing but exceptions.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/table/wire_lock.h"
#include "test/fuzz/scribble.h"

using namespace moetap;

namespace {

class Fuzzed {
 public:
  Fuzzed(fuzz::Input& input, ShmLayout layout)
      : endpoint_(endpoint(layout)),
        input_(input),
        writer_(endpoint_),
        neighbour_(Segment::open(buffer_name(endpoint_))) {}
  Fuzzed(const Fuzzed&) = delete;
  Fuzzed& operator=(const Fuzzed&) = delete;
  // The wire layout's lock file is left for a process at the other end, of which there is none.
  ~Fuzzed() {
    if (endpoint_.layout == ShmLayout::wire) std::filesystem::remove(wire_lock_path(endpoint_));
  }

  void run() {
    for (int i = 0; i < 64 && !input_.empty(); ++i) fuzz::may_refuse([&] { act(); });
  }

 private:
  static Endpoint endpoint(ShmLayout layout) {
    return {.instance = "fuzz-" + std::to_string(getpid()),
            .shape = ModelShape::uniform(2, 2, 16),
            .num_slots = 16,
            .max_tokens = 4,
            .layout = layout,
            .timeout = Milliseconds(0)};
  }

  void act() {
    switch (input_.take<std::uint8_t>() % 6) {
      case 0:
        return fuzz::scribble(neighbour_.bytes(), input_);
      case 1:
        reader_.reset();
        reader_ = make_shm_reader(endpoint_);
        return;
      case 2:
        return publish();
      case 3:
        return writer_.fail(++step_, marked_slots(), "what went wrong");
      case 4:
        if (reader_) reader_->wait_for(step_, Milliseconds(0));
        return;
      default:
        return read_and_put();
    }
  }

  std::vector<Slot> slots() {
    std::vector<Slot> slots(input_.take<std::uint8_t>() % 5u);
    for (Slot& slot : slots) slot = Slot(input_.take<std::int8_t>() % 18);
    return slots;
  }

  // Negative ones are marked.
  std::vector<MarkedSlot> marked_slots() {
    std::vector<MarkedSlot> marked;
    for (const Slot slot : slots()) marked.push_back(MarkedSlot(slot));
    return marked;
  }

  void publish() {
    const auto list = marked_slots();
    writer_.publish(++step_, list,
                    std::vector<std::byte>(list.size() * endpoint_.shape.row_bytes()));
  }

  void read_and_put() {
    if (!reader_) return;
    const auto list = slots();
    std::vector<std::byte> rows(list.size() * endpoint_.shape.row_bytes());
    std::vector<RowState> states(list.size());
    const StepWindow window{1, step_};
    reader_->read(list, {&window, 1}, rows, states);
    reader_->put(step_, list, rows, states);
  }

  Endpoint endpoint_;
  fuzz::Input& input_;
  ShmWriter writer_;
  Segment neighbour_;
  std::unique_ptr<SlotReadTransport> reader_;
  Step step_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input({data, size});
  const bool wire = (input.take<std::uint8_t>() & 1) != 0;
  Fuzzed(input, wire ? ShmLayout::wire : ShmLayout::native).run();
  return 0;
}
