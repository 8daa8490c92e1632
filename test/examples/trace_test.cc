#include "examples/simulator/trace.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace demo {
namespace {

const std::string kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,34,8\n";

const std::string kMooncake =
    R"({"timestamp": 0, "input_length": 600, "output_length": 6, "hash_ids": [7, 8]})"
    "\n"
    R"({"timestamp": 27, "input_length": 512, "output_length": 1, "hash_ids": [7]})"
    "\n";

// The message of the ArgumentError that parsing must end with.
std::string error_of(const std::string& text, std::size_t count = 0) {
  try {
    parse_trace(text, "the.trace", count, 1);
  } catch (const moetap::ArgumentError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return "";
}

void expect_error(const std::string& text, const std::string& part) {
  const std::string message = error_of(text);
  EXPECT_NE(message.find(part), message.npos) << message;
}

TEST(Trace, ReadsAzureLengths) {
  const Trace trace = parse_trace(kAzure, "a.csv", 0, 1);
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].prompt, 4808);
  EXPECT_EQ(trace.requests[0].output, 10);
  EXPECT_EQ(trace.requests[0].name, "a.csv:2");
  EXPECT_EQ(trace.requests[0].block_hashes.size(), 10U);
  EXPECT_EQ(trace.longest(), 4818);
}

TEST(Trace, ReadsWindowsLineEndsAndALastLineWithoutEnd) {
  std::string text;
  for (const char c : kAzure) text += c == '\n' ? "\r\n" : std::string(1, c);
  text.resize(text.size() - 2);
  EXPECT_EQ(parse_trace(text, "a.csv", 0, 1).requests.at(1).output, 8);
}

TEST(Trace, AzureRequestsShareAFewPromptsAndNothingElse) {
  std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (int i = 0; i < 40; ++i) text += "t,1024,1\n";
  std::set<std::uint64_t> first;
  std::set<std::uint64_t> second;
  for (const Request& request : parse_trace(text, "a.csv", 0, 1).requests) {
    first.insert(request.block_hashes.at(0));
    second.insert(request.block_hashes.at(1));
  }
  EXPECT_EQ(first.size(), kSharedPrompts);
  EXPECT_EQ(second.size(), 40U);
}

TEST(Trace, ReadsMooncakeAndEqualBlockIdsHoldEqualTokens) {
  const Trace trace = parse_trace(kMooncake, "m.jsonl", 0, 1);
  ASSERT_EQ(trace.requests.size(), 2U);
  const Request& a = trace.requests[0];
  const Request& b = trace.requests[1];
  EXPECT_EQ(a.length(), 606);
  EXPECT_EQ(b.output, 1);
  int equal = 0;
  for (std::int64_t i = 0; i < 88; ++i) {
    EXPECT_EQ(a.prompt_token(i), b.prompt_token(i));
    equal += a.prompt_token(i) == a.prompt_token(kPromptBlock + i) ? 1 : 0;
  }
  EXPECT_LT(equal, 5);
}

TEST(Trace, NamesFileAndLineOfABrokenLine) {
  expect_error(kAzure + "t,12\n", "the.trace:4: 't,12'");
  expect_error(kAzure + "t,12,3,4\n", "the.trace:4:");
  expect_error(kAzure + "t,twelve,3\n", "the.trace:4: ContextTokens is 'twelve'");
  expect_error(kAzure + "t,12,3.5\n", "the.trace:4: GeneratedTokens is '3.5'");
  expect_error(kAzure + "t,0,3\n", "the.trace:4: ContextTokens is 0; it must be 1 to");
  expect_error(kAzure + "t,5,99999999999999999999\n", "the.trace:4: GeneratedTokens");
  expect_error(kAzure + "\nt,5,9\n", "the.trace:4: empty line");
  expect_error(kMooncake + "{\"timestamp\": 0,\n", "the.trace:3: no valid JSON");
  expect_error(kMooncake + "[1]\n", "the.trace:3: no valid JSON object");
  expect_error(kMooncake + R"({"input_length": "9", "output_length": 1, "hash_ids": [1]})",
               "the.trace:3: 'input_length'");
  expect_error(kMooncake + R"({"input_length": 9, "output_length": -1, "hash_ids": [1]})",
               "the.trace:3: output_length is -1");
  expect_error(kMooncake + R"({"input_length": 9, "output_length": 1, "hash_ids": [-1]})",
               "the.trace:3: 'hash_ids'");
  for (const char* ids : {"7", "{}", "\"7\"", "null", "[1.5]", "[\"1\"]", "[[1]]", "[true]"}) {
    expect_error(kMooncake + R"({"input_length": 9, "output_length": 1, "hash_ids": )" + ids + "}",
                 "the.trace:3: 'hash_ids'");
  }
  expect_error(kMooncake + R"({"input_length": 9, "output_length": 1})", "the.trace:3: 'hash_ids'");
  expect_error(kMooncake + R"({"input_length": 513, "output_length": 1, "hash_ids": [1]})",
               "the.trace:3: hash_ids has 1 ids; input_length 513 makes 2 blocks");
}

TEST(Trace, ReadsItsJsonAsStrictlyAsAnyOther) {
  const std::string rest = R"("output_length": 1, "hash_ids": [1])";
  expect_error(kMooncake + R"({"input_length": 9, "input_length": 8, )" + rest + "}",
               "the.trace:3: JSON with an object that has the key \"input_length\" twice");
  expect_error(kMooncake + R"({"input_length": 9, "x": )" + std::string(100'000, '[') +
                   std::string(100'000, ']') + ", " + rest + "}",
               "the.trace:3: JSON that is nested");
  expect_error(kMooncake + R"({"input_length": 18446744073709551615, )" + rest + "}",
               "the.trace:3: 'input_length'");
}

// A broken line after the requests that are used is an error too: the trace is not what it seems.
TEST(Trace, ChecksLinesThatItDoesNotUse) {
  const std::string message = error_of(kAzure + "broken\n", 1);
  EXPECT_NE(message.find("the.trace:4:"), message.npos) << message;
}

TEST(Trace, RefusesAnUnknownFormatAnEmptyFileAndTooFewRequests) {
  expect_error("time,tokens\n1,2\n", "the.trace:1: 'time,tokens' starts neither");
  expect_error("", "the trace has no request");
  expect_error("TIMESTAMP,ContextTokens,GeneratedTokens\n", "the trace has no request");
  const std::string message = error_of(kAzure, 3);
  EXPECT_NE(message.find("3 requests were asked for, the trace has 2"), message.npos) << message;
}

TEST(Trace, AFileThatIsNotThereIsASystemError) {
  EXPECT_THROW(load_trace("/nonexistent/trace.csv", 0, 1), moetap::SystemError);
  EXPECT_THROW(load_trace("/", 0, 1), moetap::SystemError);
}

TEST(Trace, TakesTheFirstRequests) {
  EXPECT_EQ(parse_trace(kAzure, "a.csv", 1, 1).requests.size(), 1U);
  std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (std::size_t i = 0; i < kDefaultRequests + 5; ++i) text += "t,10,1\n";
  EXPECT_EQ(parse_trace(text, "a.csv", 0, 1).requests.size(), kDefaultRequests);
}

TEST(GeneratedTrace, IsAFunctionOfItsSeed) {
  const Trace a = generate_trace(50, 3);
  const Trace b = generate_trace(50, 3);
  const Trace c = generate_trace(50, 4);
  ASSERT_EQ(a.requests.size(), 50U);
  bool differs = false;
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(a.requests[i].prompt, b.requests[i].prompt);
    EXPECT_EQ(a.requests[i].block_hashes, b.requests[i].block_hashes);
    differs = differs || a.requests[i].prompt != c.requests[i].prompt;
    EXPECT_EQ(static_cast<std::int64_t>(a.requests[i].block_hashes.size()),
              (a.requests[i].prompt + kPromptBlock - 1) / kPromptBlock);
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace demo
