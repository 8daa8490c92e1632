#include "examples/simulator/clients.h"

#include <algorithm>
#include <utility>

namespace demo {
namespace {

constexpr std::uint64_t kFollowUp = 0x666f6c6c6f77;  // draws from a request's seed

// All clients together keep at most this much for later turns; beyond it a next turn asks for all
// rows.
constexpr std::size_t kMostWaiting = std::size_t{256} << 20;

}  // namespace

ClientCounts& ClientCounts::operator+=(const ClientCounts& other) {
  streamed += other.streamed;
  kept += other.kept;
  return *this;
}

Clients::Clients(const moetap::ModelShape& shape, const Sequences& sequences, double follow_up)
    : shape_(shape) {
  std::unordered_map<std::uint64_t, std::shared_ptr<Sequence>> by_prefix;  // the latest one
  for (const auto& sequence : sequences) {
    if (!sequence->wants_rows) continue;
    const Request& request = sequence->request;
    std::shared_ptr<Sequence> earlier;
    std::int64_t common = 0;
    std::uint64_t prefix = 0;
    for (const std::uint64_t block : request.block_hashes) {
      prefix = mix(prefix + mix(block) + 1);
      std::shared_ptr<Sequence>& latest = by_prefix[prefix];
      if (latest) {
        earlier = latest;
        common += kPromptBlock;
      }
      latest = sequence;
    }
    if (!earlier || !happens(follow_up, request.seed, kFollowUp)) continue;
    common = std::min({common, request.prompt, earlier->request.prompt});
    follow_ups_[earlier->id].push_back({sequence, common});
  }
}

void Clients::append(Sequence& sequence, const moetap::Routes& next) {
  auto& joined = joined_.try_emplace(sequence.id, shape_, moetap::TokenRange{0, 0}).first->second;
  joined.append(next);
  sequence.taken = joined.range().end;
}

void Clients::stream(Sequence& sequence, const moetap::Routes& next) {
  append(sequence, next);
  counts_.streamed += next.range().size();
}

moetap::Routes Clients::finish(const Sequence& sequence) {
  moetap::Routes rows = std::move(joined_.extract(sequence.id).mapped());
  counts_.kept += sequence.start;
  waiting_bytes_ -= static_cast<std::size_t>(sequence.start) * shape_.row_bytes();
  const auto found = follow_ups_.find(sequence.id);
  if (found != follow_ups_.end()) {
    for (const FollowUp& next : found->second) hand_on(next, rows);
    follow_ups_.erase(found);
  }
  return rows;
}

void Clients::hand_on(const FollowUp& next, const moetap::Routes& rows) {
  const auto bytes = static_cast<std::size_t>(next.common) * shape_.row_bytes();
  if (next.sequence->was_admitted() || next.common > rows.range().end ||
      bytes > kMostWaiting - waiting_bytes_) {
    return;
  }
  joined_.emplace(next.sequence->id, rows.split(next.common).first);
  next.sequence->start = next.common;
  waiting_bytes_ += bytes;
}

}  // namespace demo
