// The clients' side of rows: they join what they have with what is new, within a request and from
// one turn of a conversation to the next.
#pragma once

#include <moetap/routes.h>
#include <moetap/shape.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "examples/simulator/sequence.h"

namespace demo {

struct ClientCounts {
  std::int64_t streamed = 0;  // rows that were asked for while their request ran
  std::int64_t kept = 0;  // rows that were not asked for, since an earlier turn had brought them

  ClientCounts& operator+=(const ClientCounts& other);
};

class Clients {
 public:
  using Sequences = std::vector<std::shared_ptr<Sequence>>;

  // A share `follow_up` of the requests, drawn from their seeds, are turns of a conversation with
  // the latest earlier request whose prompt begins alike for longest: if that has its rows before
  // this one is admitted, this one asks only for the others (Sequence::start).
  Clients(const moetap::ModelShape& shape, const Sequences& sequences, double follow_up);

  // The next rows of a request. moetap::ArgumentError unless they go on where its client stands.
  void append(Sequence& sequence, const moetap::Routes& next);
  void stream(Sequence& sequence, const moetap::Routes& next);

  // The request is over: all of its rows, from position 0 on. The next turns get their part.
  moetap::Routes finish(const Sequence& sequence);

  const ClientCounts& counts() const { return counts_; }

 private:
  struct FollowUp {
    std::shared_ptr<Sequence> sequence;
    std::int64_t common;  // positions
  };

  void hand_on(const FollowUp& next, const moetap::Routes& rows);

  moetap::ModelShape shape_;
  std::unordered_map<std::uint64_t, std::vector<FollowUp>> follow_ups_;  // by request
  std::unordered_map<std::uint64_t, moetap::Routes> joined_;             // by request
  std::size_t waiting_bytes_ = 0;  // of rows that wait for their next turn to be admitted
  ClientCounts counts_;
};

}  // namespace demo
