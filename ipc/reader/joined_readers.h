// Several transports as one: a step has arrived once it has arrived in all of them.
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

  // ArgumentError for a null transport, or one whose number of slots differs from the first one's.
  void add(std::unique_ptr<SlotReadTransport> reader, std::string name);

  const std::vector<Member>& members() const { return members_; }
  SlotReadTransport& first() const { return *members_.front().reader; }

  // See ReadTransport; for all members, within one timeout. StepFailed if the step failed in any
  // member, once its outcome is known in all, so that no part of it can still arrive. A wait polls
  // all members in turn, so that no member's ring stays full while another is waited for (H35).
  Step poll();
  void wait_for(Step step, Milliseconds limit);
  bool worker_alive() const;
  DroppedSteps dropped() const;

  // The last step that these calls have reached.
  Step arrived() const { return arrived_; }

 private:
  // Takes in what has arrived at all members. Returns the first member that has not reached `step`,
  // or null.
  const Member* poll_all(Step step);
  [[noreturn]] void throw_timeout(const Member& member, Step step, Milliseconds limit) const;

  std::vector<Member> members_;
  Step arrived_ = 0;
};

// The checks of SlotReadTransport::read, except slots, which the transports check.
void check_read_sizes(std::size_t num_slots, std::size_t num_windows, std::size_t rows_bytes,
                      std::size_t num_states, std::size_t row_bytes);

}  // namespace moetap::detail
