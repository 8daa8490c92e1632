// What a scheduler tells its Ledger once a step, in one call for all requests.
#include <moetap/error.h>

#include <fmt/format.h>

#include <exception>
#include <string>

#include "python/src/errors.h"
#include "python/src/ledger.h"

namespace moetap::python {
namespace {

void require_sizes(std::size_t requests, std::size_t values, const char* name) {
  if (requests == values) return;
  throw ArgumentError(fmt::format("{} has {} elements for {} requests", name, values, requests));
}

// Calls one(i) for each request. If it throws, says for which, and what came before it stands.
template <class One>
void each(std::span<const std::uint64_t> requests, nb::handle done, One&& one) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    try {
      one(i);
    } catch (const Error&) {
      throw BatchError(std::current_exception(), i, requests.size(), nb::borrow(done));
    }
  }
}

// The new blocks of each request: blocks[offsets[i], offsets[i + 1]).
class NewBlocks {
 public:
  NewBlocks(Ints& blocks, Ints& offsets, std::size_t requests)
      : blocks_(block_ids(blocks, "new_blocks")), offsets_(offsets.get("new_block_offsets")) {
    if (offsets_.empty() && blocks_.empty()) return;
    require_sizes(requests + 1, offsets_.size(), "new_block_offsets (one more than requests)");
    if (offsets_.front() != 0 || offsets_.back() != static_cast<std::int64_t>(blocks_.size())) {
      throw ArgumentError(fmt::format(
          "new_block_offsets are {} to {}; they must be 0 to {}, the number of new_blocks",
          offsets_.front(), offsets_.back(), blocks_.size()));
    }
    for (std::size_t i = 0; i < requests; ++i) {
      if (offsets_[i] > offsets_[i + 1]) {
        throw ArgumentError(
            fmt::format("new_block_offsets[{}] is {} and the next {}; they must ascend", i,
                        offsets_[i], offsets_[i + 1]));
      }
    }
  }
  std::span<const BlockId> of(std::size_t i) const {
    if (offsets_.empty()) return {};
    return blocks_.subspan(static_cast<std::size_t>(offsets_[i]),
                           static_cast<std::size_t>(offsets_[i + 1] - offsets_[i]));
  }

 private:
  std::span<const BlockId> blocks_;
  std::span<const std::int64_t> offsets_;
};

void schedule_many(PyLedger& l, GivenStep step, Ids requests, Ints starts, Ints ends,
                   Ints new_blocks, Ints new_block_offsets) {
  const auto ids = requests.get("requests");
  const auto from = starts.get("starts");
  const auto to = ends.get("ends");
  require_sizes(ids.size(), from.size(), "starts");
  require_sizes(ids.size(), to.size(), "ends");
  const NewBlocks blocks(new_blocks, new_block_offsets, ids.size());
  const auto ledger = l.use();
  each(ids, nb::none(), [&](std::size_t i) {
    ledger->schedule(step, RequestId(ids[i]), {from[i], to[i]}, blocks.of(i));
  });
}

void accept_many(PyLedger& l, GivenStep step, Ids requests, Ints num_tokens) {
  const auto ids = requests.get("requests");
  const auto tokens = num_tokens.get("num_tokens");
  require_sizes(ids.size(), tokens.size(), "num_tokens");
  const auto ledger = l.use();
  each(ids, nb::none(), [&](std::size_t i) { ledger->accept(step, RequestId(ids[i]), tokens[i]); });
}

nb::list finish_many(PyLedger& l, Ids requests, Ints num_tokens) {
  const auto ids = requests.get("requests");
  const auto tokens = num_tokens.get("num_tokens");
  require_sizes(ids.size(), tokens.size(), "num_tokens");
  const auto ledger = l.use();
  nb::list plans;
  each(ids, plans, [&](std::size_t i) {
    plans.append(nb::cast(ledger->finish(RequestId(ids[i]), tokens[i])));
  });
  return plans;
}

}  // namespace

void add_batches(nb::class_<PyLedger>& ledger) {
  ledger.def(
      "schedule_many", &schedule_many, nb::arg("step"), nb::arg("requests"), nb::arg("starts"),
      nb::arg("ends"), nb::arg("new_blocks") = nb::tuple(),
      nb::arg("new_block_offsets") = nb::tuple(),
      "schedule() of positions [starts[i], ends[i]) for each requests[i], in order. Request i "
      "gets\n"
      "new_blocks[new_block_offsets[i] : new_block_offsets[i + 1]]; without offsets none gets "
      "any.\n"
      "If one cannot be scheduled, the exception's `index` says which; those before it are.");
  ledger.def("accept_many", &accept_many, nb::arg("step"), nb::arg("requests"),
             nb::arg("num_tokens"),
             "accept() for each requests[i], in order. Exceptions as in schedule_many().");
  ledger.def(
      "finish_many", &finish_many, nb::arg("requests"), nb::arg("num_tokens"),
      nb::sig("def finish_many(self, requests: numpy.typing.NDArray[numpy.integer[typing.Any]] | "
              "collections.abc.Sequence[int], num_tokens: "
              "numpy.typing.NDArray[numpy.integer[typing.Any]] | "
              "collections.abc.Sequence[int]) -> list[RowPlan]"),
      "finish() for each requests[i], in order. Exceptions as in schedule_many(); their `done` "
      "has\n"
      "the plans of the requests before it.");
}

}  // namespace moetap::python
