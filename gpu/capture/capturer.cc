#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>

#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/capture/outside_graph.h"
#include "gpu/internal/device_cache.h"
#include "gpu/internal/snapshot.h"
#include "gpu/transport/step_failures.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/internal/singleton.h"
#include "lib/internal/text.h"

namespace moetap {
namespace {

detail::Singleton<Capturer>& process_capturer() {
  static auto* capturer = new detail::Singleton<Capturer>("Capturer");
  return *capturer;
}

void check_options(const CapturerOptions& options) {
  if (options.dp_size < 1 || options.dp_rank < 0 || options.dp_rank >= options.dp_size) {
    throw ArgumentError(fmt::format("dp_rank {} of dp_size {}; ranks are 0 to dp_size - 1",
                                    options.dp_rank, options.dp_size));
  }
  if (options.shared_expert_columns < 0) {
    throw ArgumentError(fmt::format("{} shared-expert columns; it must be 0 or more",
                                    options.shared_expert_columns));
  }
}

void check_padded(std::int64_t padded_tokens, std::int64_t max_tokens) {
  if (padded_tokens > max_tokens && !MOETAP_OFF("H4 room in the device cache")) {
    throw RangeError(
        fmt::format("{} tokens (with padding), but the device cache holds {}; raise max_tokens",
                    padded_tokens, max_tokens));
  }
}

void check_requests(const StepInfo& step) {
  std::int64_t left = step.num_tokens;
  for (const RequestSpan& span : step.requests) {
    if (span.position < 0 || span.count < 1 || span.count > left) {
      throw ArgumentError(
          fmt::format("request {} has {} tokens from position {}; the position must be 0 or more, "
                      "and the tokens "
                      "1 to {}, since so many of the step's {} are left",
                      span.request, span.count, span.position, left, step.num_tokens));
    }
    if (span.num_drafts < 0 || span.num_drafts >= span.count) {
      throw ArgumentError(
          fmt::format("request {} has {} drafts among {} tokens from position {}; allowed are 0 to "
                      "{}, since the first token is none",
                      span.request, span.num_drafts, span.count, span.position, span.count - 1));
    }
    left -= span.count;
  }
  if (!step.requests.empty() && left > 0) {
    throw ArgumentError(
        fmt::format("{} of the step's {} tokens belong to no request", left, step.num_tokens));
  }
}

void check_wanted(const StepInfo& step) {
  if (!step.wanted) return;
  std::int64_t free = 0;  // the end of the previous range
  for (const TokenRange range : *step.wanted) {
    if (range.start < free || range.end <= range.start || range.end > step.num_tokens) {
      throw ArgumentError(
          fmt::format("step {} wants the rows of tokens [{}, {}); ranges must not be empty, lie "
                      "within [{}, {}) "
                      "(the end of the range before it, num_tokens) and ascend: sort and join them",
                      step.step, range.start, range.end, free, step.num_tokens));
    }
    free = range.end;
  }
}

std::unique_ptr<DeviceCache> make_cache(const Transport* transport) {
  if (transport == nullptr) throw ArgumentError("a Capturer needs a transport, given is null");
  const Endpoint& endpoint = transport->endpoint();
  return std::make_unique<DeviceCache>(
      transport->device(), endpoint.shape, endpoint.max_tokens,
      fmt::format("{}/{}/{}/{}", endpoint.instance, endpoint.dp_rank, endpoint.stage,
                  endpoint.part));
}

// The sum over all ranks, and over the ranks before this one.
struct DpTokens {
  std::int64_t total = 0;
  std::int64_t before = 0;
};

DpTokens sum_dp_tokens(const StepInfo& step, const CapturerOptions& options) {
  const auto size = static_cast<std::size_t>(options.dp_size);
  const auto rank = static_cast<std::size_t>(options.dp_rank);
  if (step.dp_tokens.size() != size) {
    throw ArgumentError(fmt::format("dp_tokens has {} entries for {} data-parallel ranks",
                                    step.dp_tokens.size(), size));
  }
  if (step.dp_tokens[rank] != step.num_tokens) {
    throw ArgumentError(
        fmt::format("dp_tokens says {} tokens for this rank ({}), num_tokens says {}",
                    step.dp_tokens[rank], rank, step.num_tokens));
  }
  DpTokens sums;
  for (std::size_t i = 0; i < size; ++i) {
    const std::int64_t tokens = step.dp_tokens[i];
    if (tokens < 0 || tokens > std::numeric_limits<std::int64_t>::max() - sums.total) {
      throw ArgumentError(fmt::format("dp_tokens says {} tokens for rank {}", tokens, i));
    }
    if (i == rank) sums.before = sums.total;
    sums.total += tokens;
  }
  return sums;
}

}  // namespace

Capturer::Capturer(std::unique_ptr<Transport> transport, CapturerOptions options)
    : cache_(make_cache(transport.get())),
      transport_(std::move(transport)),
      wanted_(std::make_unique<WantedTokens>(cache_->max_tokens())),
      options_(options) {
  check_options(options_);
  if (options_.compare_all_picks) cache_->compare_all_picks();
  bound_.resize(static_cast<std::size_t>(shape().num_layers()));
}

Capturer::~Capturer() = default;

Capturer& Capturer::create(std::unique_ptr<Transport> transport, CapturerOptions options) {
  return process_capturer().create(std::move(transport), options);
}
Capturer& Capturer::instance() { return process_capturer().instance(); }
void Capturer::destroy() { process_capturer().destroy(); }

void Capturer::bind(int model_layer) {
  const auto layer = static_cast<std::size_t>(shape().layer_index(model_layer));
  if (bound_[layer] && !MOETAP_OFF("H1 bound once")) {
    throw StateError(fmt::format(
        "layer {} is bound already; bind only the target model's layers, not a draft model's",
        model_layer));
  }
  bound_[layer] = true;
  ++num_bound_;
}

void Capturer::require_ready(const char* call) const {
  if (phase_ != Phase::idle) {
    throw StateError(fmt::format(
        "{} while a {} is open; {} first", call, phase_ == Phase::step ? "step" : "graph",
        phase_ == Phase::step ? "publish() it or give_up()" : "end_graph()"));
  }
  if (num_bound_ == shape().num_layers()) return;
  std::vector<int> unbound;
  for (std::size_t i = 0; i < bound_.size(); ++i) {
    if (!bound_[i]) unbound.push_back(shape().moe_layers()[i]);
  }
  throw StateError(fmt::format("{} while MoE layers {} are not bound; bind() each once", call,
                               detail::join_ranges(unbound)));
}

void Capturer::begin_step(const StepInfo& step, Stream& stream) {
  require_ready("begin_step()");
  if (step.step <= last_step_) {
    throw StateError(fmt::format("step {} after step {}; step numbers only grow, from 1", step.step,
                                 last_step_));
  }
  const std::int64_t padded = step.padded_tokens == 0 ? step.num_tokens : step.padded_tokens;
  if (step.num_tokens < 0 || padded < step.num_tokens) {
    throw ArgumentError(fmt::format(
        "num_tokens is {} and padded_tokens {}; allowed are 0 <= num_tokens <= padded_tokens",
        step.num_tokens, step.padded_tokens));
  }
  check_padded(padded, cache_->max_tokens());
  check_requests(step);
  check_wanted(step);
  const bool concatenated = options_.layout == RankLayout::concatenated;
  const DpTokens dp =
      concatenated || !step.dp_tokens.empty() ? sum_dp_tokens(step, options_) : DpTokens{};

  require_outside_graph(stream, "begin_step()");
  transport_->begin(step);
  cache_->begin_step(step.step, step.num_tokens, concatenated ? dp.before : 0, stream);
  wanted_->set(step);
  phase_ = Phase::step;
  last_step_ = step.step;
  nothing_wanted_ = step.wanted && step.wanted->empty();
  not_published_.clear();
  padded_tokens_ = padded;
  dp_total_ = dp.total;
}

void Capturer::begin_graph(std::int64_t padded_tokens) {
  require_ready("begin_graph()");
  if (padded_tokens < 1) {
    throw ArgumentError(fmt::format("a graph of {} tokens; it must be at least 1", padded_tokens));
  }
  check_padded(padded_tokens, cache_->max_tokens());
  phase_ = Phase::graph;
  padded_tokens_ = padded_tokens;
}

void Capturer::end_graph() {
  if (phase_ != Phase::graph) throw StateError("end_graph() without begin_graph()");
  phase_ = Phase::idle;
}

void Capturer::check_rows(int model_layer, std::int64_t rows) const {
  const std::int64_t all_padded = options_.dp_size * padded_tokens_;
  const bool in_graph = phase_ == Phase::graph;
  const std::int64_t num_tokens = cache_->num_tokens();
  bool allowed = false;
  std::string expected;
  switch (options_.layout) {
    case RankLayout::local:
      allowed = rows == padded_tokens_ || (!in_graph && rows == num_tokens);
      if (!allowed) {
        expected = in_graph || num_tokens == padded_tokens_
                       ? fmt::format("{} (this rank's)", padded_tokens_)
                       : fmt::format("{} (this rank's) or {} (padded)", num_tokens, padded_tokens_);
      }
      break;
    case RankLayout::concatenated:
      allowed = in_graph ? rows >= padded_tokens_ && rows <= all_padded : rows == dp_total_;
      if (!allowed) {
        expected = in_graph ? fmt::format("{} to {} (all ranks')", padded_tokens_, all_padded)
                            : fmt::format("{} (the sum of dp_tokens)", dp_total_);
      }
      break;
    case RankLayout::padded:
      allowed = rows == all_padded;
      if (!allowed) {
        expected = fmt::format("{} ({} ranks of {} padded tokens)", all_padded, options_.dp_size,
                               padded_tokens_);
      }
      break;
  }
  if (allowed || MOETAP_OFF("H5 rows of a layout")) return;
  throw ArgumentError(
      fmt::format("layer {}: topk_ids has {} rows, expected are {}", model_layer, rows, expected));
}

void Capturer::check_topk_ids(int model_layer, const TopkIds& ids) const {
  const std::int64_t columns = std::int64_t{shape().top_k()} + options_.shared_expert_columns;
  if (ids.columns != columns && !MOETAP_OFF("H27 declared columns")) {
    throw ArgumentError(fmt::format(
        "layer {}: topk_ids has {} columns, expected are {}: top_k {} and {} of shared experts "
        "(set "
        "CapturerOptions::shared_expert_columns)",
        model_layer, ids.columns, columns, shape().top_k(), options_.shared_expert_columns));
  }
  check_rows(model_layer, ids.rows);
}

void Capturer::capture(int model_layer, const TopkIds& topk_ids, Stream& stream) {
  if (phase_ == Phase::idle) {
    throw StateError(fmt::format(
        "layer {}: capture() outside of a step or graph; begin_step() or begin_graph() first",
        model_layer));
  }
  const int layer = shape().layer_index(model_layer);  // must be bound, or no step could be open
  check_topk_ids(model_layer, topk_ids);

  TopkIds ids = topk_ids;
  std::int64_t first_row = 0;
  if (options_.layout == RankLayout::padded && !MOETAP_OFF("H5 this rank's rows")) {
    first_row = options_.dp_rank * padded_tokens_;
    // A graph that is replayed for more tokens than it was recorded for must not take the next
    // rank's rows, which come after this rank's.
    ids.rows = first_row + padded_tokens_;
  }
  if (options_.layout == RankLayout::concatenated &&
      !MOETAP_OFF("H13 a row that the device reads")) {
    first_row = DeviceCache::kRowFromStep;
  }
  cache_->capture(layer, ids, first_row, stream);
}

bool Capturer::bound(int model_layer) const {
  return bound_[static_cast<std::size_t>(shape().layer_index(model_layer))];
}

int Capturer::require_bound(int model_layer, const char* call) const {
  if (bound(model_layer)) return shape().layer_index(model_layer);
  throw StateError(fmt::format("layer {}: {} before bind()", model_layer, call));
}

void Capturer::route_sink(int model_layer, RouteSink& sink) const {
  const int layer = require_bound(model_layer, "route_sink()");
  std::int64_t first_row = 0;
  std::int64_t end_row = DeviceCache::kAllRows;
  if (options_.layout == RankLayout::concatenated) first_row = DeviceCache::kRowFromStep;
  if (options_.layout == RankLayout::padded) {
    if (phase_ == Phase::idle) {
      throw StateError(fmt::format(
          "layer {}: route_sink() outside of a step or graph; in the padded layout this "
          "rank's rows depend on its padding, so begin_step() or begin_graph() first",
          model_layer));
    }
    first_row = options_.dp_rank * padded_tokens_;
    end_row = first_row + padded_tokens_;
  }
  sink = cache_->sink(layer, first_row, end_row, options_.shared_expert_columns);
}

RouteOutput Capturer::route_output(int model_layer) const {
  const int layer = require_bound(model_layer, "route_output()");
  if (options_.layout != RankLayout::local) {
    throw ArgumentError(fmt::format(
        "layer {}: a routing output holds this rank's tokens; it needs the local layout, not "
        "topk_ids of all {} ranks",
        model_layer, options_.dp_size));
  }
  return cache_->route_output(layer);
}

void Capturer::publish(const Slot* slot_mapping, Stream& stream) {
  if (phase_ != Phase::step) throw StateError("publish() without begin_step()");
  try {
    if (!nothing_wanted_) deliver(slot_mapping, stream);
  } catch (const std::exception& error) {
    // The reason if the step is then given up.
    not_published_ = fmt::format("the worker gave it up, since publish() failed: {}", error.what());
    throw;
  }
  cache_->end_step(stream);
  phase_ = Phase::idle;
}

void Capturer::deliver(const Slot* slot_mapping, Stream& stream) {
  const std::int64_t num_tokens = cache_->num_tokens();
  if (slot_mapping == nullptr && num_tokens > 0) {
    throw ArgumentError(fmt::format(
        "slot_mapping is null, but step {} has {} tokens; publish it with the anchor group's slots",
        last_step_, num_tokens));
  }
  transport_->deliver(Snapshot(*cache_, *wanted_, slot_mapping), stream);
}

void Capturer::give_up(const Slot* slot_mapping, Stream& stream) noexcept {
  if (phase_ != Phase::step || MOETAP_OFF("H37 a step that was given up")) return;
  phase_ = Phase::idle;
  const std::string_view why = not_published_.empty() ? kGivenUp : not_published_;
  // The reader is not told of a step that has no rows.
  if (!nothing_wanted_) {
    transport_->give_up(Snapshot(*cache_, *wanted_, slot_mapping), why, stream);
  }
  cache_->abandon_step(stream);
}

}  // namespace moetap
