// The clients' side of rows: they join the rows that they have with new ones, within a request and
// between turns of a conversation.
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
  std::int64_t streamed = 0;  // rows that were requested while their request ran
  std::int64_t kept = 0;      // rows that were not requested, as an earlier turn had returned them

  ClientCounts& operator+=(const ClientCounts& other);
};

class Clients {
 public:
  using Sequences = std::vector<std::shared_ptr<Sequence>>;

  // A share `follow_up` of the requests, drawn from their seeds, are later turns of a conversation.
  // The earlier turn is the latest request with the longest common prompt prefix. If its rows are
  // there before this request is admitted, this one asks only for the others (Sequence::start).
  Clients(const moetap::ModelShape& shape, const Sequences& sequences, double follow_up);

  // The next rows of a request. moetap::ArgumentError unless they continue the client's rows.
  void append(Sequence& sequence, const moetap::Routes& next);
  void stream(Sequence& sequence, const moetap::Routes& next);

  // The request ends with all of its rows, from position 0 on. Later turns get their part.
  moetap::Routes finish(const Sequence& sequence);

  const ClientCounts& counts() const { return counts_; }

 private:
  struct FollowUp {
    std::shared_ptr<Sequence> sequence;
    std::int64_t common;  // positions
  };

  void hand_on(const FollowUp& next, const moetap::Routes& rows);

  moetap::ModelShape shape_;
  std::unordered_map<RequestId, std::vector<FollowUp>> follow_ups_;  // by request
  std::unordered_map<RequestId, moetap::Routes> joined_;             // by request
  std::size_t waiting_bytes_ = 0;  // of rows that wait for their next turn to be admitted
  ClientCounts counts_;
};

}  // namespace demo
