#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "lib/internal/number_format.h"
#include "test/crash/setup.h"

namespace moetap::crash {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<Slot> all_slots(const Setup& setup) {
  std::vector<Slot> slots(static_cast<std::size_t>(setup.endpoint.num_slots));
  std::iota(slots.begin(), slots.end(), Slot{0});
  return slots;
}

void put_rows(SlotReadTransport& reader, Step number) {
  const Step step = Step((std::uint64_t{1} << 40) + number.value());
  const std::vector<Slot> slots{kFirstPutSlot, kFirstPutSlot + 3};
  std::vector<std::byte> rows(slots.size() * sizeof(Row));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Row put = row_of(kPut, step, slots[i]);
    std::memcpy(&rows[i * sizeof(Row)], put.data(), sizeof put);
  }
  reader.put(step, slots, rows, {});
}

std::string describe(const Row& row) {
  return fmt::format("{} {} {} {} {} {}", row[0], row[1], row[2], row[3], row[4], row[5]);
}

// Follows one worker until it is gone, and believes nothing that it reads.
class Follower {
 public:
  Follower(const Setup& setup, Shared& shared) : setup_(setup), shared_(shared) {}
  virtual ~Follower() = default;

  // The number of steps that were verified. Ends with the worker, or after most_steps.
  int follow(int most_steps) {
    int steps = 0;
    while (!shared_.stop && steps < most_steps) {
      const auto began = Clock::now();
      try {
        if (!next()) continue;
        ++steps;
      } catch (const TimeoutError& error) {
        check_in_time(setup_, began, error.what());
        if (std::strstr(error.what(), "died") == nullptr) continue;  // it is slow, but lives
        lost();
        return steps;
      }
    }
    return steps;
  }

 protected:
  // Waits for a step and verifies it; false if there was nothing to verify.
  virtual bool next() = 0;
  // Once the worker is dead.
  virtual void check_remains() {}

  // Waits for the step after `last` and returns the last that has come. One that failed says so.
  template <class Transport>
  Step wait_for_next(Transport& reader, Step last) {
    bool failed = false;
    try {
      reader.wait_for(last + 1, setup_.endpoint.timeout);
    } catch (const StepFailed& error) {
      failed = true;
      if (!fails(last + 1)) wrong(setup_, error.what());
    }
    const Step came = reader.poll();
    // Only the latest failures are remembered.
    if (!failed && fails(last + 1) && came <= last + kFailEvery) {
      wrong(setup_, fmt::format("step {} failed, and a reader was not told", last + 1));
    }
    return came;
  }

  // A present row is one that this worker wrote, whole, for its slot.
  Row check_row(std::span<const std::byte> bytes, std::optional<Slot> slot) {
    Row row;
    std::memcpy(row.data(), bytes.data(), sizeof row);
    const std::uint32_t generation = row[0];
    if (row != row_of(generation, Step(row[1]), Slot(row[2])) || (slot && Slot(row[2]) != *slot)) {
      wrong(setup_, fmt::format("torn row of slot {}: {}", slot.value_or(Slot(-1)), describe(row)));
    }
    if (generation == kPut) return row;
    if (generation_ == 0 && generation > dead_before_) see(generation);
    if (generation != generation_) {
      wrong(setup_, fmt::format("row of worker {} among worker {}'s ({} were dead before)",
                                generation, generation_, dead_before_));
    }
    ++shared_.rows;
    return row;
  }

  void verified_step() {
    if (generation_ != 0) ++shared_.verified;
  }
  std::uint32_t generation() const { return generation_; }

  const Setup& setup_;
  Shared& shared_;

 private:
  void see(std::uint32_t generation) {
    generation_ = generation;
    if (shared_.attached.exchange(generation) != generation) shared_.verified = 0;
  }

  void lost() {
    // Until the parent has said how it died.
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (shared_.dead < generation_ && !shared_.stop && Clock::now() < deadline) usleep(200);
    check_remains();
    if (generation_ != 0) shared_.lost = generation_;
  }

  // Workers that had ended before this one was looked for cannot be the one that was found.
  const std::uint32_t dead_before_ = shared_.dead;
  std::uint32_t generation_ = 0;
};

class SlotFollower final : public Follower {
 public:
  SlotFollower(const Setup& setup, Shared& shared)
      : Follower(setup, shared),
        reader_(setup.kill.transport == Transport::device ? make_device_reader(setup.endpoint)
                                                          : make_shm_reader(setup.endpoint)) {}

 private:
  bool next() override {
    last_ = wait_for_next(*reader_, last_);
    check_step();
    check_all();
    check_lost();
    check_lent();
    if (last_.value() % 4 == 0) put_rows(*reader_, last_);
    verified_step();
    return true;
  }

  std::vector<RowState> read(const std::vector<Slot>& slots, std::span<const StepWindow> windows) {
    std::vector<RowState> states(slots.size());
    bytes_.resize(slots.size() * reader_->shape().row_bytes());
    reader_->read(slots, windows, bytes_, states);
    return states;
  }
  std::span<const std::byte> row(std::size_t i) const {
    return std::span(bytes_).subspan(i * sizeof(Row), sizeof(Row));
  }

  // The last step's rows: exactly that step's, and none if it failed. A later one may have taken a
  // slot meanwhile where the worker writes by itself.
  void check_step() {
    const std::vector<Slot> slots = slots_of_step(setup_.seed, last_);
    const StepWindow window{last_, last_};
    const auto states = read(slots, {&window, 1});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] == RowState::present) {
        const Row got = check_row(row(i), slots[i]);
        if (got != row_of(got[0], last_, slots[i]) || fails(last_)) {
          wrong(setup_, fmt::format("step {} has {}", last_, describe(got)));
        }
      } else if (states[i] == RowState::stale ||
                 (setup_.kill.transport == Transport::device &&
                  !(fails(last_) && states[i] == RowState::missing))) {
        wrong(setup_, fmt::format("step {}: the row of slot {} is in state {}", last_, slots[i],
                                  static_cast<int>(states[i])));
      }
    }
  }

  // A row is the one of the step that its stamp names.
  void check_all() {
    const std::vector<Slot> slots = all_slots(setup_);
    std::vector<Step> written(slots.size());
    reader_->stamps(slots, written);
    std::vector<StepWindow> windows;
    windows.reserve(written.size());
    for (const Step step : written)
      windows.push_back({std::max(step, Step(1)), std::max(step, Step(1))});
    const auto states = read(slots, windows);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] != RowState::present) continue;
      const Row got = check_row(row(i), slots[i]);
      if (got[1] != (windows[i].first.value() & 0xffff)) {
        wrong(setup_, fmt::format("the row of slot {} and step {} is {}", slots[i],
                                  windows[i].first, describe(got)));
      }
    }
  }

  // The slots that a given-up step has written are not known: no older row is present.
  void check_lost() {
    Step lost = last_;
    while (lost > 0 && !is_given_up(lost)) lost -= 1;
    if (lost == 0) return;
    const std::vector<Slot> slots = all_slots(setup_);
    const StepWindow window{1, last_};
    const auto states = read(slots, {&window, 1});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] != RowState::present) continue;
      const Row got = check_row(row(i), slots[i]);
      // Of less than 2^16 steps the row has the number.
      if (last_ <= 0xffff && Step(got[1]) < lost) {
        wrong(setup_, fmt::format("step {} was given up, and slot {} has an older row: {}", lost,
                                  slots[i], describe(got)));
      }
    }
  }

  void check_lent() {
    const std::vector<Slot> slots = all_slots(setup_);
    std::vector<const std::byte*> rows(slots.size());
    std::vector<RowState> states(slots.size());
    const StepWindow window;
    const auto lease = reader_->lend(slots, {&window, 1}, rows, states, "crash test");
    if (!lease) return;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] == RowState::present) check_row({rows[i], sizeof(Row)}, slots[i]);
    }
  }

  // Rows that were half written when the worker was killed, under its lock.
  void check_remains() override {
    check_all();
    last_ = reader_->poll();
    check_lost();
    if (setup_.kill.transport != Transport::shm || !setup_.kill.rows_missing || generation() == 0 ||
        !shared_.killed_at_point[generation()]) {
      return;
    }
    const std::vector<Slot> slots = slots_of_step(setup_.seed, reader_->poll() + 1);
    const StepWindow any;
    for (const RowState state : read(slots, {&any, 1})) {
      if (state != RowState::missing) {
        wrong(setup_,
              fmt::format("a row that was half written is in state {}", static_cast<int>(state)));
      }
    }
  }

  std::unique_ptr<SlotReadTransport> reader_;
  Step last_ = 0;
  std::vector<std::byte> bytes_;
};

// Each step is a request that ends with it.
class RequestFollower final : public Follower {
 public:
  RequestFollower(const Setup& setup, Shared& shared)
      : Follower(setup, shared), reader_(make_request_reader(setup.endpoint)) {}

 private:
  bool next() override {
    const bool first = last_ == 0;
    const Step came = wait_for_next(*reader_, last_);
    // What was handed over to an earlier reader does not come again.
    for (Step step = first ? came : last_ + 1; step <= came; ++step) take(step);
    last_ = came;
    verified_step();
    return true;
  }

  void take(Step step) {
    const std::vector<Slot> slots = slots_of_step(setup_.seed, step);
    std::vector<RowState> states(slots.size());
    std::vector<std::byte> rows(slots.size() * sizeof(Row));
    const TokenRange all{0, static_cast<std::int64_t>(slots.size())};
    reader_->take(RequestId(step.value()), all, rows, states, setup_.endpoint.timeout);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (fails(step) ? states[i] != RowState::missing : states[i] != RowState::present) {
        wrong(setup_, fmt::format("request {}: row {} is in state {}", step, i,
                                  static_cast<int>(states[i])));
      }
      if (fails(step)) continue;
      const Row got = check_row(std::span(rows).subspan(i * sizeof(Row), sizeof(Row)), slots[i]);
      if (got != row_of(got[0], step, slots[i])) {
        wrong(setup_, fmt::format("request {} has {}", step, describe(got)));
      }
    }
  }

  std::unique_ptr<RequestReadTransport> reader_;
  Step last_ = 0;
};

// A row of this layout says nothing about itself, so that one which a process was writing when it
// was killed may be torn. At a point none is: there each row is whole, or was not written
// yet.
void check_wire_row(const Setup& setup, const Row& row, Slot slot) {
  if (setup.kill.point == nullptr || row == Row{}) return;
  if (row != row_of(row[0], Step(row[1]), Slot(row[2])) || Slot(row[2]) != slot) {
    wrong(setup, fmt::format("torn row of slot {}: {}", slot, describe(row)));
  }
}

void look_at_wire(const Setup& setup, Shared& shared) {
  const auto reader = make_shm_reader(setup.endpoint);
  const std::vector<Slot> slots = all_slots(setup);
  const auto seen = static_cast<std::size_t>(slots_of_step(setup.seed, 1)[0].value());
  std::vector<std::byte> bytes(slots.size() * sizeof(Row));
  std::vector<Row> rows(slots.size());
  std::vector<RowState> states(slots.size());
  for (int i = 0; i < 5; ++i) {
    const StepWindow window;
    reader->read(slots, {&window, 1}, bytes, states);
    std::memcpy(rows.data(), bytes.data(), bytes.size());
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (states[s] == RowState::unverified) check_wire_row(setup, rows[s], slots[s]);
    }
    if (states[seen] == RowState::unverified && rows[seen][0] != 0) {
      const std::uint32_t generation = rows[seen][0];
      if (shared.attached.exchange(generation) != generation) shared.verified = 0;
      ++shared.verified;
      ++shared.rows;
    }
    usleep(200);
  }
  put_rows(*reader, Step(shared.verified.load()));
}

int follow(const Setup& setup, Shared& shared, int most_steps) {
  switch (setup.kill.transport) {
    case Transport::wire:
      look_at_wire(setup, shared);
      return 1;
    case Transport::request:
      return RequestFollower(setup, shared).follow(most_steps);
    default:
      return SlotFollower(setup, shared).follow(most_steps);
  }
}

}  // namespace

void run_reader(const Setup& setup, Shared& shared, int most_steps) {
  for (int steps = 0; !shared.stop && steps < most_steps;) {
    const auto began = Clock::now();
    try {
      steps += follow(setup, shared, most_steps - steps);
    } catch (const TimeoutError& error) {  // no worker came
      check_in_time(setup, began, error.what());
    } catch (const MismatchError&) {  // a worker is about to replace a buffer of another size
      if (setup.kill.transport != Transport::wire) throw;
    }
  }
}

}  // namespace moetap::crash
