// Rows that wait to be collected, for schedulers that do not read them as soon as a request ends.
#pragma once

#include <moetap/export.h>
#include <moetap/ledger.h>
#include <moetap/reader.h>

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

namespace moetap {

// Plans that are not yet read, by request. A waiting plan holds its blocks. The scheduler then
// either allocates other blocks (Ledger::held) or has the rows read early (take_early). The ledger
// and the reader must outlive it. One thread at a time.
class MOETAP_API PendingRows {
 public:
  PendingRows(Ledger& ledger, Reader& reader) : ledger_(ledger), reader_(reader) {}

  // Adds a request's plan. StateError if the request's rows already wait.
  void add(RowPlan plan);

  bool contains(RequestId request) const { return pending_.contains(request); }
  std::size_t size() const { return pending_.size(); }

  // Call it before these blocks get new tokens. Reads the rows of all waiting requests that hold
  // any of them, and releases their blocks. Costs nothing if none is held. TimeoutError if a step
  // in flight does not arrive; requests that were not read then still wait and hold their blocks.
  void take_early(std::span<const BlockId> blocks, Milliseconds timeout);

  // Returns the request's rows, whether read now or early, and removes its plan. StateError if its
  // rows do not wait. After a TimeoutError they still wait.
  Routes collect(RequestId request, Milliseconds timeout);

  // Discards the request's plan and rows. StateError as above.
  void drop(RequestId request);

 private:
  struct Pending {
    RowPlan plan;
    Hold hold;
    std::optional<Routes> taken;
  };
  using Map = std::unordered_map<RequestId, Pending>;

  Map::iterator find(RequestId request);

  Ledger& ledger_;
  Reader& reader_;
  Map pending_;
};

}  // namespace moetap
