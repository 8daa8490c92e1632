// Rows that wait to be collected, for schedulers that do not read them the moment a request ends.
#pragma once

#include <moetap/ledger.h>
#include <moetap/reader.h>

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

namespace moetap {

// Plans that are not read yet, by request. While one waits its blocks are held, and the scheduler
// either gives out other blocks (Ledger::held) or has the rows taken early (take_early). The ledger
// and the reader must outlive it. One thread at a time.
class PendingRows {
 public:
  PendingRows(Ledger& ledger, Reader& reader) : ledger_(ledger), reader_(reader) {}

  // StateError if the request's rows wait already.
  void add(RowPlan plan);

  bool contains(std::uint64_t request) const { return pending_.contains(request); }
  std::size_t size() const { return pending_.size(); }

  // These blocks are about to get new tokens: takes the rows of everyone who waits for rows in them
  // and lets go of their blocks. Costs nothing if none of them is held. TimeoutError if a step in
  // flight does not come; who has not been read then still waits, and holds its blocks.
  void take_early(std::span<const BlockId> blocks, Milliseconds limit);

  // The rows, now or taken early; they wait no longer. StateError if the request's do not wait,
  // TimeoutError after which they still do.
  Routes collect(std::uint64_t request, Milliseconds limit);

  // Nobody wants them any more. StateError as above.
  void drop(std::uint64_t request);

 private:
  struct Pending {
    RowPlan plan;
    Hold hold;
    std::optional<Routes> taken;
  };
  using Map = std::unordered_map<std::uint64_t, Pending>;

  Map::iterator find(std::uint64_t request);

  Ledger& ledger_;
  Reader& reader_;
  Map pending_;
};

}  // namespace moetap
