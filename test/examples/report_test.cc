#include "examples/simulator/report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace demo {
namespace {

TEST(Percentiles, AreByNearestRank) {
  std::vector<double> samples;
  for (int i = 200; i >= 1; --i) samples.push_back(i);
  EXPECT_EQ(percentiles(samples).p50, 100);
  EXPECT_EQ(percentiles(samples).p99, 198);
  EXPECT_EQ(percentiles({7}).p50, 7);
  EXPECT_EQ(percentiles({7}).p99, 7);
  EXPECT_EQ(percentiles({}).p99, 0);
}

TEST(RunReport, AddsUpTheWorkers) {
  std::vector<EngineResult> results(2);
  results[0].counts = {1, 2, 3, 9, 4, 5, 6, 7, 8, 9};
  results[1].counts = {10, 20, 30, 80, 40, 50, 60, 70, 80, 90};
  results[0].clients = {1, 2};
  results[1].clients = {10, 20};
  results[0].blocks_offloaded = 3;
  results[1].blocks_offloaded = 30;
  results[0].taken_early = 1;
  results[1].taken_early = 10;
  results[0].rows.expected = 5;
  results[1].rows.expected = 6;
  results[0].rows.verified = 5;
  results[1].rows.verified = 4;
  results[1].rows.wrong = 1;
  results[1].rows.missing = 1;
  results[1].rows.stale = 2;
  results[1].rows.clobbered = 3;
  results[0].rows.examples = {"a"};
  results[1].rows.examples = {"b"};
  results[0].worker_overhead_us = {1, 2};
  results[1].worker_overhead_us = {3};
  RunReport report;
  summarize(results, report);
  EXPECT_EQ(report.counts.steps, 11);
  EXPECT_EQ(report.counts.tokens, 22);
  EXPECT_EQ(report.counts.prefix_hit_tokens, 33);
  EXPECT_EQ(report.counts.offload_hit_tokens, 89);
  EXPECT_EQ(report.blocks_offloaded, 33U);
  EXPECT_EQ(report.counts.preemptions, 44);
  EXPECT_EQ(report.counts.drafts, 55);
  EXPECT_EQ(report.counts.drafts_rejected, 66);
  EXPECT_EQ(report.counts.wanting, 77);
  EXPECT_EQ(report.counts.aborted, 88);
  EXPECT_EQ(report.counts.rows_published, 99);
  EXPECT_EQ(report.clients.streamed, 11);
  EXPECT_EQ(report.clients.kept, 22);
  EXPECT_EQ(report.taken_early, 11);
  EXPECT_EQ(report.rows.expected, 11);
  EXPECT_EQ(report.rows.verified, 9);
  EXPECT_EQ(report.rows.wrong, 1);
  EXPECT_EQ(report.rows.missing, 1);
  EXPECT_EQ(report.rows.stale, 2);
  EXPECT_EQ(report.rows.clobbered, 3);
  EXPECT_EQ(report.rows.examples, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(report.worker_overhead_us.p50, 2);
}

TEST(RunReport, IsGoodOnlyWhenEveryExpectedRowWasVerified) {
  RunReport report;
  report.transport = "shm";
  report.requests = 3;
  report.requests_rejected = 2;
  report.rows.expected = 10;
  report.rows.verified = 10;
  EXPECT_EQ(report.failure(), "");
  report.rows.wrong = 1;
  EXPECT_EQ(report.failure(), "shm: of 10 rows that were asked for 10 were verified, 1 are wrong");
  report.rows.wrong = 0;
  report.rows.verified = 9;
  EXPECT_EQ(report.failure(), "shm: of 10 rows that were asked for 9 were verified, 0 are wrong");
}

TEST(RunReport, SaysThatNothingWasServedInsteadOfBlamingRows) {
  RunReport report;
  report.transport = "shm";
  report.requests = 3;
  report.requests_rejected = 3;
  EXPECT_EQ(report.failure(), "shm: nothing was served: all 3 requests were rejected");
}

TEST(RunReport, NobodyNeedsToAskForRows) {
  RunReport report;
  report.requests = 3;
  EXPECT_EQ(report.failure(), "");
}

TEST(RunReport, HasTheDocumentedKeys) {
  const auto json = nlohmann::json::parse(to_json({RunReport{}}));
  std::set<std::string> keys;
  for (const auto& [key, value] : json.at("runs").at(0).items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"transport",
                                         "device",
                                         "model",
                                         "trace",
                                         "requests",
                                         "requests_rejected",
                                         "steps",
                                         "tokens",
                                         "rows_expected",
                                         "rows_verified",
                                         "rows_wrong",
                                         "rows_missing",
                                         "rows_stale",
                                         "rows_clobbered",
                                         "rows_published",
                                         "bytes_published",
                                         "rows_streamed",
                                         "rows_of_earlier_turns",
                                         "requests_wanting",
                                         "requests_aborted",
                                         "requests_taken_early",
                                         "offload_hit_tokens",
                                         "blocks_offloaded",
                                         "async_depth",
                                         "drafts",
                                         "drafts_rejected",
                                         "prefix_hit_tokens",
                                         "preemptions",
                                         "worker_overhead_us",
                                         "visible_latency_us",
                                         "read_us_per_request",
                                         "bytes_per_row",
                                         "wall_s"}));
  for (const char* key : {"worker_overhead_us", "visible_latency_us", "read_us_per_request"}) {
    EXPECT_TRUE(json["runs"][0][key].contains("p50"));
    EXPECT_TRUE(json["runs"][0][key].contains("p99"));
  }
}

}  // namespace
}  // namespace demo
