// Several transports as one: a step has arrived once it has arrived in all of them.
#pragma once

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace moetap::detail {

// What a derived class adds is how the members' rows become one.
class JoinedReaders : public SlotReadTransport {
 public:
  std::int64_t num_slots() const final { return first().num_slots(); }

  // For all members, within one timeout. StepFailed if the step failed in any member, once its
  // outcome is known in all, so that no part of it can still arrive. A wait polls all members in
  // turn, so that no member's ring stays full while another is waited for (H35).
  Step poll() final;
  void wait_for(Step step, Milliseconds timeout) final;
  bool worker_alive() final;
  DroppedSteps dropped() final;

 protected:
  struct Member {
    std::unique_ptr<SlotReadTransport> reader;
    std::string name;  // in messages: "the stage of layers 4-7"
  };

  // ArgumentError for a null transport, or one whose number of slots differs from the first one's.
  void add(std::unique_ptr<SlotReadTransport> reader, std::string name);

  const std::vector<Member>& members() const { return members_; }
  SlotReadTransport& first() const { return *members_.front().reader; }

  // The last step that poll() and wait_for() have reached.
  Step arrived() const { return arrived_; }

 private:
  // Takes in what has arrived at all members. Returns the first member that has not reached `step`,
  // or null.
  const Member* poll_all(Step step);
  // The first member that never comes to `step`, since its worker died; null if there is none.
  const Member* find_dead(Step step);
  [[noreturn]] void throw_timeout(const Member& member, Step step,
                                  std::chrono::nanoseconds waited) const;

  std::vector<Member> members_;
  Step arrived_ = 0;
};

}  // namespace moetap::detail
