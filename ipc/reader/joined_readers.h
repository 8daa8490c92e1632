// Transports whose steps count once they are there in all of them.
#pragma once

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <memory>
#include <string>
#include <vector>

namespace moetap::detail {

class JoinedReaders {
 public:
  struct Member {
    std::unique_ptr<SlotReadTransport> reader;
    std::string name;  // in messages: "the stage of layers 4-7"
  };

  // ArgumentError for a null transport, or one with another number of slots than the first.
  void add(std::unique_ptr<SlotReadTransport> reader, std::string name);

  const std::vector<Member>& members() const { return members_; }
  SlotReadTransport& first() const { return *members_.front().reader; }

  // See SlotReadTransport; of all members, within one limit. StepFailed if it failed in any of
  // them, once its outcome is known in all, so that nothing of it can still arrive. A wait polls
  // all of them in turn, so that none stands with a full ring while another is waited for (H35).
  Step poll();
  void wait_for(Step step, Milliseconds limit);
  bool worker_alive() const;
  DroppedSteps dropped() const;

  // The last step that these have shown to be there.
  Step arrived() const { return arrived_; }

 private:
  // Takes in what has arrived at all of them. The first that has not come to `step`, or null.
  const Member* poll_all(Step step);
  [[noreturn]] void throw_timeout(const Member& member, Step step, Milliseconds limit) const;

  std::vector<Member> members_;
  Step arrived_ = 0;
};

// As SlotReadTransport::read says. Slots are left to the transports.
void check_read_sizes(std::size_t num_slots, std::size_t num_windows, std::size_t rows_bytes,
                      std::size_t num_states, std::size_t row_bytes);

}  // namespace moetap::detail
