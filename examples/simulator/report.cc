#include "examples/simulator/report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace demo {
namespace {

void append(std::vector<double>& all, const std::vector<double>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

nlohmann::ordered_json to_json(const Percentiles& p) { return {{"p50", p.p50}, {"p99", p.p99}}; }

std::string grouped(std::int64_t value) {  // 1,234,567
  std::string text = std::to_string(value);
  for (std::ptrdiff_t i = std::ssize(text) - 3; i > 0; i -= 3) {
    text.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return text;
}

std::string to_cell(const Percentiles& p) { return fmt::format("{:.1f} / {:.1f}", p.p50, p.p99); }

}  // namespace

Percentiles percentiles(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double p) {
    const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(samples.size())));
    return samples[rank - 1];
  };
  return {at(0.50), at(0.99)};
}

std::string RunReport::failure() const {
  if (requests_rejected == requests) {
    return fmt::format("{}: nothing was served: all {} requests were rejected", transport,
                       requests);
  }
  if (rows.complete()) return "";
  return fmt::format("{}: of {} rows that were asked for {} were verified, {} are wrong", transport,
                     rows.expected, rows.verified, rows.wrong);
}

void summarize(const std::vector<EngineResult>& results, RunReport& report) {
  std::vector<double> overhead;
  std::vector<double> latency;
  std::vector<double> reads;
  for (const EngineResult& result : results) {
    report.device = result.device;
    report.counts += result.counts;
    report.clients += result.clients;
    report.rows += result.rows;
    report.blocks_offloaded += result.blocks_offloaded;
    report.taken_early += result.taken_early;
    append(overhead, result.worker_overhead_us);
    append(latency, result.visible_latency_us);
    append(reads, result.read_us_per_request);
  }
  report.worker_overhead_us = percentiles(std::move(overhead));
  report.visible_latency_us = percentiles(std::move(latency));
  report.read_us_per_request = percentiles(std::move(reads));
}

std::string to_table(const std::vector<RunReport>& runs) {
  std::string table;
  const auto row = [&](std::string_view name, auto cell) {
    table += fmt::format("{:<32}", name);
    for (const RunReport& run : runs) table += fmt::format("{:>22}", cell(run));
    table += '\n';
  };
  row("transport", [](const RunReport& r) { return r.transport; });
  row("device", [](const RunReport& r) { return r.device; });
  row("requests", [](const RunReport& r) { return grouped(r.requests); });
  row("requests rejected", [](const RunReport& r) { return grouped(r.requests_rejected); });
  row("steps", [](const RunReport& r) { return grouped(r.counts.steps); });
  row("tokens", [](const RunReport& r) { return grouped(r.counts.tokens); });
  row("prefix hit tokens", [](const RunReport& r) { return grouped(r.counts.prefix_hit_tokens); });
  row("tokens back from offload",
      [](const RunReport& r) { return grouped(r.counts.offload_hit_tokens); });
  row("preemptions", [](const RunReport& r) { return grouped(r.counts.preemptions); });
  row("steps in flight, at most", [](const RunReport& r) { return grouped(r.async_depth); });
  row("drafts, rejected", [](const RunReport& r) {
    return grouped(r.counts.drafts) + ", " + grouped(r.counts.drafts_rejected);
  });
  row("requests aborted", [](const RunReport& r) { return grouped(r.counts.aborted); });
  row("requests that ask for rows", [](const RunReport& r) { return grouped(r.counts.wanting); });
  row("rows published", [](const RunReport& r) { return grouped(r.counts.rows_published); });
  row("rows asked for while running",
      [](const RunReport& r) { return grouped(r.clients.streamed); });
  row("rows of earlier turns", [](const RunReport& r) { return grouped(r.clients.kept); });
  row("requests read before reuse", [](const RunReport& r) { return grouped(r.taken_early); });
  row("rows expected", [](const RunReport& r) { return grouped(r.rows.expected); });
  row("rows verified", [](const RunReport& r) { return grouped(r.rows.verified); });
  row("rows wrong", [](const RunReport& r) { return grouped(r.rows.wrong); });
  row("rows missing, stale, clobbered", [](const RunReport& r) {
    return fmt::format("{}, {}, {}", grouped(r.rows.missing), grouped(r.rows.stale),
                       grouped(r.rows.clobbered));
  });
  row("bytes per row", [](const RunReport& r) { return fmt::to_string(r.bytes_per_row); });
  row("worker overhead, us", [](const RunReport& r) { return to_cell(r.worker_overhead_us); });
  row("visible latency, us", [](const RunReport& r) { return to_cell(r.visible_latency_us); });
  row("read of a request, us", [](const RunReport& r) { return to_cell(r.read_us_per_request); });
  row("wall time, s", [](const RunReport& r) { return fmt::format("{:.2f}", r.wall_s); });
  return table + "(us: p50 / p99)\n";
}

std::string to_json(const std::vector<RunReport>& runs) {
  auto list = nlohmann::ordered_json::array();
  for (const RunReport& r : runs) {
    list.push_back({{"transport", r.transport},
                    {"device", r.device},
                    {"model", r.model},
                    {"trace", r.trace},
                    {"requests", r.requests},
                    {"requests_rejected", r.requests_rejected},
                    {"steps", r.counts.steps},
                    {"tokens", r.counts.tokens},
                    {"rows_expected", r.rows.expected},
                    {"rows_verified", r.rows.verified},
                    {"rows_wrong", r.rows.wrong},
                    {"rows_missing", r.rows.missing},
                    {"rows_stale", r.rows.stale},
                    {"rows_clobbered", r.rows.clobbered},
                    {"rows_published", r.counts.rows_published},
                    {"bytes_published", r.bytes_published()},
                    {"rows_streamed", r.clients.streamed},
                    {"rows_of_earlier_turns", r.clients.kept},
                    {"requests_wanting", r.counts.wanting},
                    {"requests_aborted", r.counts.aborted},
                    {"requests_taken_early", r.taken_early},
                    {"async_depth", r.async_depth},
                    {"drafts", r.counts.drafts},
                    {"drafts_rejected", r.counts.drafts_rejected},
                    {"prefix_hit_tokens", r.counts.prefix_hit_tokens},
                    {"offload_hit_tokens", r.counts.offload_hit_tokens},
                    {"blocks_offloaded", r.blocks_offloaded},
                    {"preemptions", r.counts.preemptions},
                    {"worker_overhead_us", to_json(r.worker_overhead_us)},
                    {"visible_latency_us", to_json(r.visible_latency_us)},
                    {"read_us_per_request", to_json(r.read_us_per_request)},
                    {"bytes_per_row", r.bytes_per_row},
                    {"wall_s", r.wall_s}});
  }
  return nlohmann::ordered_json{{"runs", list}}.dump(2) + "\n";
}

}  // namespace demo
