#include "examples/simulator/batch.h"

#include <moetap/error.h>
#include <moetap/slots.h>

#include <fmt/format.h>

#include "lib/internal/number_format.h"

namespace demo {

void Batch::begin(const PlanView& plan) {
  for (const PlanEnd& end : plan.ended) running_.erase(end.request);
  tokens_.clear();
  positions_.clear();
  slots_.clear();
  requests_.clear();
  auto blocks = plan.blocks;
  auto known = plan.tokens;
  for (const PlanSpan& span : plan.spans) {
    const auto fresh = blocks.first(static_cast<std::size_t>(span.new_blocks));
    blocks = blocks.subspan(fresh.size());
    if (span.starts != 0) running_[span.request] = {{}, span.position, 0};
    const auto found = running_.find(span.request);
    if (found == running_.end()) {
      throw moetap::MismatchError(
          fmt::format("step {} goes on with request {}, which was not started or has ended",
                      plan.step, span.request));
    }
    Request& request = found->second;
    request.blocks.insert(request.blocks.end(), fresh.begin(), fresh.end());
    const bool decode = span.kind == SpanKind::decode;
    if (decode ? request.next > span.position : request.next != span.position) {
      throw moetap::MismatchError(
          fmt::format("step {} puts request {} at position {}; it stands at {}", plan.step,
                      span.request, span.position, request.next));
    }
    lay_out(span, request, decode ? std::span<const Token>() : known);
    if (!decode) known = known.subspan(static_cast<std::size_t>(span.count));
  }
}

void Batch::lay_out(const PlanSpan& span, Request& request, std::span<const Token> known) {
  const moetap::TokenRange range{request.next, request.next + span.count};
  requests_.push_back({span.request, range.start, span.count});
  const std::size_t end = slots_.size();
  slots_.resize(end + static_cast<std::size_t>(span.count));
  moetap::slots_of(request.blocks, block_size_, range, std::span(slots_).subspan(end));
  for (std::int64_t position = range.start; position < range.end; ++position) {
    positions_.push_back(static_cast<std::int32_t>(position));
    if (!known.empty()) {
      tokens_.push_back(known[static_cast<std::size_t>(position - range.start)]);
    } else {
      tokens_.push_back(position == range.start ? request.last
                                                : draft_token(span.seed, position, reject_rate_));
    }
  }
}

void Batch::sample(const PlanView& plan) {
  counts_.clear();
  sampled_.clear();
  std::size_t first = 0;
  for (const PlanSpan& span : plan.spans) {
    const auto ran = std::span(tokens_).subspan(first, static_cast<std::size_t>(span.count));
    first += ran.size();
    Request& request = running_.at(span.request);
    if (span.kind != SpanKind::decode) request.next += span.count;
    if (!span.samples()) continue;
    const auto drafts = span.kind == SpanKind::decode ? ran.subspan(1) : std::span<Token>();
    if (span.kind == SpanKind::decode) ++request.next;
    std::int32_t count = 1;
    for (const Token draft : drafts) {
      if (draft != sampled_token(span.seed, request.next)) break;
      sampled_.push_back(draft);
      ++request.next;
      ++count;
    }
    request.last = sampled_token(span.seed, request.next);
    sampled_.push_back(request.last);
    counts_.push_back(count);
  }
}

}  // namespace demo
