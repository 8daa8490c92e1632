#include "bench/scheduler.h"

#include <moetap/read_transport.h>
#include <moetap/reader.h>

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace moetap::bench {

Scheduler::Scheduler(std::string_view transport, const Endpoint& endpoint)
    : process_([&] { serve(*board_.get(), transport, endpoint); }) {}

void Scheduler::serve(Board& board, std::string_view transport, const Endpoint& endpoint) {
  Reader reader(transport == "shm" ? make_shm_reader(endpoint) : make_device_reader(endpoint));
  const SlotMappings mappings(endpoint.num_slots);
  std::vector<std::byte> rows(kMaxTokens * endpoint.shape.row_bytes());
  std::vector<RowState> states(kMaxTokens);
  for (Step step = 1;; ++step) {
    reader.wait_for(step, std::chrono::hours(1));
    if (const auto tokens = static_cast<std::size_t>(board.tokens.load())) {
      const auto slots = mappings.slots().subspan(static_cast<std::size_t>(board.offset), tokens);
      const StepWindow window{.first = step, .last = step};
      reader.read(slots, {&window, 1}, std::span(rows).first(tokens * endpoint.shape.row_bytes()),
                  std::span(states).first(tokens));
      if (std::count(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(tokens),
                     RowState::present) != static_cast<std::ptrdiff_t>(tokens)) {
        throw std::runtime_error("rows of a published step are not present");
      }
    }
    board.done_at = Clock::now().time_since_epoch().count();
    board.done = step;
    wake(board.changed);
  }
}

void Scheduler::expect(std::int64_t offset, std::int64_t tokens) {
  board_->offset = offset;
  board_->tokens = tokens;
}

Scheduler::Clock::time_point Scheduler::wait(Step step) {
  while (!wait_until(board_->changed, Clock::now() + std::chrono::milliseconds(100),
                     [&] { return board_->done >= step; })) {
    process_.require_alive();
  }
  return Clock::time_point(Clock::duration(board_->done_at.load()));
}

}  // namespace moetap::bench
