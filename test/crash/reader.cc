#include <moetap/error.h>
#include <moetap/readers.h>

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "setup.h"

namespace moetap::crash {
namespace {

using Clock = std::chrono::steady_clock;

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

  // A present row is one that this worker wrote, whole, for its slot.
  Row check_row(std::span<const std::byte> bytes, std::optional<Slot> slot) {
    Row row;
    std::memcpy(row.data(), bytes.data(), sizeof row);
    const std::uint32_t generation = row[0];
    if (row != row_of(generation, row[1], row[2]) || (slot && row[2] != *slot)) {
      wrong(setup_, fmt::format("torn row of slot {}: {}", slot.value_or(-1), describe(row)));
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
  static std::string describe(const Row& row) {
    return fmt::format("{} {} {} {} {} {}", row[0], row[1], row[2], row[3], row[4], row[5]);
  }

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
    reader_->wait_for(last_ + 1, setup_.endpoint.limit);
    last_ = reader_->last_step();
    check_step();
    check_all();
    if (setup_.kill.transport == Transport::shm && last_ % 4 == 0) put();
    verified_step();
    return true;
  }

  std::vector<RowState> read(const std::vector<Slot>& slots, StepWindow window) {
    std::vector<RowState> states(slots.size());
    bytes_.resize(slots.size() * reader_->shape().row_bytes());
    reader_->read(slots, {&window, 1}, bytes_, states);
    return states;
  }
  std::span<const std::byte> row(std::size_t i) const {
    return std::span(bytes_).subspan(i * sizeof(Row), sizeof(Row));
  }

  // The last step's rows: exactly that step's. A later one may have taken a slot meanwhile where
  // the worker writes by itself.
  void check_step() {
    const std::vector<Slot> slots = slots_of_step(setup_.seed, last_);
    const auto states = read(slots, {last_, last_});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] == RowState::present) {
        const Row got = check_row(row(i), slots[i]);
        if (got != row_of(got[0], last_, slots[i])) {
          wrong(setup_, fmt::format("step {} has {}", last_, describe(got)));
        }
      } else if (setup_.kill.transport == Transport::device || states[i] == RowState::stale) {
        wrong(setup_, fmt::format("step {}: the row of slot {} is in state {}", last_, slots[i],
                                  static_cast<int>(states[i])));
      }
    }
  }

  void check_all() {
    std::vector<Slot> slots(static_cast<std::size_t>(setup_.endpoint.num_slots));
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<Slot>(i);
    const auto states = read(slots, {});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] == RowState::present) check_row(row(i), slots[i]);
    }
  }

  // Rows that were half written when the worker was killed, under its lock.
  void check_remains() override {
    check_all();
    if (setup_.kill.transport != Transport::shm || !setup_.kill.rows_missing || generation() == 0 ||
        !shared_.killed_at_point[generation()]) {
      return;
    }
    const std::vector<Slot> slots = slots_of_step(setup_.seed, reader_->last_step() + 1);
    for (const RowState state : read(slots, {})) {
      if (state != RowState::missing) {
        wrong(setup_,
              fmt::format("a row that was half written is in state {}", static_cast<int>(state)));
      }
    }
  }

  void put() {
    const Step step = (Step{1} << 40) + last_;
    const std::vector<Slot> slots{kFirstPutSlot, kFirstPutSlot + 3};
    std::vector<std::byte> rows(slots.size() * sizeof(Row));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Row put = row_of(kPut, step, slots[i]);
      std::memcpy(&rows[i * sizeof(Row)], put.data(), sizeof put);
    }
    reader_->put(step, slots, rows);
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
    reader_->wait_for(last_ + 1, setup_.endpoint.limit);
    const Step came = reader_->last_step();
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
    reader_->take(step, all, rows, states, setup_.endpoint.limit);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (states[i] != RowState::present) {
        wrong(setup_, fmt::format("request {}: row {} is in state {}", step, i,
                                  static_cast<int>(states[i])));
      }
      const Row got = check_row(std::span(rows).subspan(i * sizeof(Row), sizeof(Row)), slots[i]);
      if (got != row_of(got[0], step, slots[i])) {
        wrong(setup_, fmt::format("request {} has {}", step, describe(got)));
      }
    }
  }

  std::unique_ptr<RequestReadTransport> reader_;
  Step last_ = 0;
};

// Nothing can be said about a row of this layout, but that the reader is neither stuck nor stopped.
void look_at_wire(const Setup& setup, Shared& shared) {
  const auto reader = make_shm_reader(setup.endpoint);
  const std::vector<Slot> slots = slots_of_step(setup.seed, 1);
  std::vector<std::byte> rows(slots.size() * sizeof(Row));
  std::vector<RowState> states(slots.size());
  for (int i = 0; i < 5; ++i) {
    const StepWindow window;
    reader->read(slots, {&window, 1}, rows, states);
    Row row;
    std::memcpy(row.data(), rows.data(), sizeof row);
    if (states[0] == RowState::unverified && row[0] != 0) {
      if (shared.attached.exchange(row[0]) != row[0]) shared.verified = 0;
      ++shared.verified;
      ++shared.rows;
    }
    usleep(200);
  }
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
    }
  }
}

}  // namespace moetap::crash
