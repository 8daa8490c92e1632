#include "test/simulation/traced.h"

namespace moetap::simulation {
namespace {

Json fields_of(const Placement& placement) {
  return {{"blocks", to_json(placement.blocks)}, {"cached", placement.cached}};
}

Json fields_of(RequestId request) { return {{"request", to_json(request)}}; }

Json fields_of(Step step, RequestId request, std::int64_t num_tokens) {
  return {{"step", to_json(step)}, {"request", to_json(request)}, {"num_tokens", num_tokens}};
}

Json pairs_of(std::span<const BlockMove> moves) {
  Json pairs = Json::array();
  for (const auto& [from, to] : moves) pairs.push_back({from.value(), to.value()});
  return pairs;
}

}  // namespace

TracedLedger::TracedLedger(Trace& trace, std::int64_t num_blocks, int block_size, Drafts drafts)
    : Ledger(num_blocks, block_size, drafts), trace_(trace) {
  trace_.note("Ledger", {{"num_blocks", num_blocks},
                         {"block_size", block_size},
                         {"drafts", drafts == Drafts::tree ? "tree" : "chain"}});
}

void TracedLedger::admit(const Admission& admission) {
  const auto fields = [&] {
    Json all = fields_of(admission.placement);
    all["request"] = to_json(admission.request);
    all["num_tokens"] = admission.num_tokens;
    all["wants_rows"] = admission.wants_rows;
    all["start"] = admission.start;
    return all;
  };
  trace_.made("admit", fields, [&] { Ledger::admit(admission); });
}

void TracedLedger::schedule(Step step, RequestId request, TokenRange positions,
                            std::span<const BlockId> new_blocks) {
  const auto fields = [&] {
    return Json{{"step", to_json(step)},
                {"request", to_json(request)},
                {"positions", to_json(positions)},
                {"new_blocks", to_json(new_blocks)}};
  };
  trace_.made("schedule", fields, [&] { Ledger::schedule(step, request, positions, new_blocks); });
}

void TracedLedger::accept(Step step, RequestId request, std::int64_t num_tokens) {
  trace_.made(
      "accept", [&] { return fields_of(step, request, num_tokens); },
      [&] { Ledger::accept(step, request, num_tokens); });
}

MovePlan TracedLedger::accept(Step step, RequestId request, std::int64_t num_tokens,
                              std::span<const std::int64_t> accepted, Step moved_as) {
  const auto fields = [&] {
    Json all = fields_of(step, request, num_tokens);
    all["accepted"] = to_json(accepted);
    all["moved_as"] = to_json(moved_as);
    return all;
  };
  return trace_.made("accept", fields,
                     [&] { return Ledger::accept(step, request, num_tokens, accepted, moved_as); });
}

void TracedLedger::preempt(RequestId request) {
  trace_.made(
      "preempt", [&] { return fields_of(request); }, [&] { Ledger::preempt(request); });
}

RowPlan TracedLedger::preempt_keeping(RequestId request) {
  return trace_.made(
      "preempt_keeping", [&] { return fields_of(request); },
      [&] { return Ledger::preempt_keeping(request); });
}

void TracedLedger::resume(RequestId request, const Placement& placement) {
  const auto fields = [&] {
    Json all = fields_of(placement);
    all["request"] = to_json(request);
    return all;
  };
  trace_.made("resume", fields, [&] { Ledger::resume(request, placement); });
}

MovePlan TracedLedger::move(Step step, std::span<const BlockMove> moves) {
  return trace_.made(
      "move",
      [&] {
        return Json{{"step", to_json(step)}, {"moves", pairs_of(moves)}};
      },
      [&] { return Ledger::move(step, moves); });
}

MovePlan TracedLedger::copy(Step step, RequestId request, BlockMove move) {
  const auto fields = [&] {
    return Json{{"step", to_json(step)},
                {"request", to_json(request)},
                {"from_block", to_json(move.from)},
                {"to_block", to_json(move.to)}};
  };
  return trace_.made("copy", fields, [&] { return Ledger::copy(step, request, move); });
}

FillPlan TracedLedger::fill(Step step, RequestId request, TokenRange positions) {
  const auto fields = [&] {
    return Json{
        {"step", to_json(step)}, {"request", to_json(request)}, {"positions", to_json(positions)}};
  };
  return trace_.made("fill", fields, [&] { return Ledger::fill(step, request, positions); });
}

void TracedLedger::forget(std::span<const BlockId> blocks) {
  trace_.made(
      "forget",
      [&] {
        return Json{{"blocks", to_json(blocks)}};
      },
      [&] { Ledger::forget(blocks); });
}

void TracedLedger::flush() {
  trace_.made(
      "flush", [] { return Json::object(); }, [&] { Ledger::flush(); });
}

RowPlan TracedLedger::finish(RequestId request, std::int64_t num_tokens) {
  return trace_.made(
      "finish",
      [&] {
        return Json{{"request", to_json(request)}, {"num_tokens", num_tokens}};
      },
      [&] { return Ledger::finish(request, num_tokens); });
}

RowPlan TracedLedger::abort(RequestId request) {
  return trace_.made(
      "abort", [&] { return fields_of(request); }, [&] { return Ledger::abort(request); });
}

RowPlan TracedLedger::rows_since(RequestId request, std::int64_t start) const {
  return trace_.made(
      "rows_since",
      [&] {
        return Json{{"request", to_json(request)}, {"start", start}};
      },
      [&] { return Ledger::rows_since(request, start); });
}

RowPlan TracedLedger::block_rows(BlockId block) const {
  return trace_.made(
      "block_rows",
      [&] {
        return Json{{"block", to_json(block)}};
      },
      [&] { return Ledger::block_rows(block); });
}

std::int64_t TracedLedger::cached_rows(const Placement& placement) const {
  return trace_.made(
      "cached_rows", [&] { return fields_of(placement); },
      [&] { return Ledger::cached_rows(placement); });
}

std::int64_t TracedLedger::num_wanting() const {
  return trace_.made(
      "num_wanting", [] { return Json::object(); }, [&] { return Ledger::num_wanting(); });
}

bool TracedLedger::held(BlockId block) const {
  return trace_.made(
      "held",
      [&] {
        return Json{{"block", to_json(block)}};
      },
      [&] { return Ledger::held(block); });
}

Step TracedReader::poll() {
  return trace_.made(
      "poll", [] { return Json::object(); }, [&] { return Reader::poll(); });
}

void TracedReader::wait_for(Step step, Milliseconds timeout) {
  trace_.made(
      "wait_for",
      [&] {
        return Json{{"step", to_json(step)}};
      },
      [&] { Reader::wait_for(step, timeout); });
}

Routes read_rows(TracedReader& reader, const RowPlan& plan, Milliseconds timeout) {
  return reader.trace().made(
      "read_rows",
      [&] {
        return Json{{"plan", to_json(plan)}};
      },
      [&] { return moetap::read_rows(reader, plan, timeout); });
}

Routes read_rows(TracedReader& reader, const RowPlan& plan) {
  return reader.trace().made(
      "read_rows",
      [&] {
        return Json{{"plan", to_json(plan)}, {"wait", false}};
      },
      [&] { return moetap::read_rows(reader, plan); });
}

RoutesView view_rows(TracedReader& reader, const RowPlan& plan, const std::string& holder,
                     Milliseconds timeout) {
  RoutesView view = moetap::view_rows(reader, plan, holder, timeout);
  if (reader.trace().on()) reader.trace().note("view_rows", {{"plan", to_json(plan)}});
  return view;
}

Routes detach(TracedReader& reader, RoutesView view) {
  return reader.trace().made(
      "detach", [] { return Json::object(); }, [&] { return std::move(view).detach(); });
}

void append(Trace& trace, MovePlan& to, const MovePlan& next) {
  Json fields;
  if (trace.on()) fields = {{"to", to_json(to)}, {"next", to_json(next)}};
  to.append(next);
  if (trace.on()) fields["result"] = to_json(to);
  trace.note("append", std::move(fields));
}

std::size_t move_rows(TracedReader& reader, const MovePlan& plan, Milliseconds timeout) {
  return reader.trace().made(
      "move_rows",
      [&] {
        return Json{{"plan", to_json(plan)}};
      },
      [&] { return moetap::move_rows(reader, plan, timeout); });
}

void fill_rows(TracedReader& reader, const FillPlan& plan, std::span<const std::byte> rows,
               Milliseconds timeout) {
  reader.trace().made(
      "fill_rows",
      [&] {
        return Json{{"plan", to_json(plan)}, {"rows", to_json(rows)}};
      },
      [&] { moetap::fill_rows(reader, plan, rows, timeout); });
}

bool store_block(BlockStore& store, const BlockKey& key, const TracedLedger& ledger,
                 TracedReader& reader, BlockId block, Milliseconds timeout) {
  return reader.trace().made(
      "store_block",
      [&] {
        return Json{{"key", key.hex()}, {"block", to_json(block)}};
      },
      [&] { return moetap::store_block(store, key, ledger, reader, block, timeout); });
}

std::int64_t load_blocks(BlockStore& store, const std::vector<BlockKey>& keys, TracedLedger& ledger,
                         TracedReader& reader, Step step, RequestId request, std::int64_t position,
                         Milliseconds timeout) {
  const auto fields = [&] {
    Json texts = Json::array();
    for (const BlockKey& key : keys) texts.push_back(key.hex());
    return Json{{"keys", std::move(texts)},
                {"step", to_json(step)},
                {"request", to_json(request)},
                {"position", position}};
  };
  return reader.trace().made("load_blocks", fields, [&] {
    return moetap::load_blocks(store, keys, ledger, reader, step, request, position, timeout);
  });
}

void TracedPending::add(const RowPlan& plan) {
  trace_.made(
      "add",
      [&] {
        return Json{{"plan", to_json(plan)}};
      },
      [&] { rows_.add(plan); });
}

void TracedPending::take_early(const std::vector<BlockId>& blocks, Milliseconds timeout) {
  trace_.made(
      "take_early",
      [&] {
        return Json{{"blocks", to_json(blocks)}};
      },
      [&] { rows_.take_early(blocks, timeout); });
}

Routes TracedPending::collect(RequestId request, Milliseconds timeout) {
  return trace_.made(
      "collect", [&] { return fields_of(request); },
      [&] { return rows_.collect(request, timeout); });
}

}  // namespace moetap::simulation
