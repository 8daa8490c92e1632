// The requests that the simulator serves: read from a public trace format, or generated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "examples/simulator/token.h"

namespace demo {

// A prompt consists of blocks of this many tokens (the last may be shorter), as in Mooncake's
// trace.
inline constexpr std::int64_t kPromptBlock = 512;

struct Request {
  std::string name;                         // where it came from: "file:line" or "generated:3"
  std::uint64_t seed = 0;                   // of its sampled tokens
  std::int64_t prompt = 0;                  // tokens, at least 1
  std::int64_t output = 0;                  // tokens to be sampled, at least 1
  std::vector<std::uint64_t> block_hashes;  // one per prompt block; equal ids mean equal tokens

  // Token `position` of the prompt. Traces hold no text, so the tokens are a function of the block.
  Token prompt_token(std::int64_t position) const;

  // Tokens when it is finished. The last one is never run through the model.
  std::int64_t length() const { return prompt + output; }
};

struct Trace {
  std::string name;
  std::vector<Request> requests;

  std::int64_t longest() const;  // request, in tokens
};

// The first `count` requests of an Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or Mooncake
// JSONL trace (timestamp, input_length, output_length, hash_ids), told apart by their content; 0:
// at most the first kDefaultRequests. Azure's lengths come without contents: each of its requests
// starts with one of kSharedPrompts prompt blocks, so that prefixes are shared. Arrival times are
// ignored: all requests are there from the start, in order. moetap::ArgumentError with file and
// line for any malformed line, and for a trace with fewer requests than `count`.
// moetap::SystemError for a file that cannot be read.
inline constexpr std::size_t kDefaultRequests = 300;
inline constexpr std::uint64_t kSharedPrompts = 4;
Trace load_trace(const std::filesystem::path& path, std::size_t count, std::uint64_t seed);
Trace parse_trace(std::string_view text, const std::string& name, std::size_t count,
                  std::uint64_t seed);

// A small trace: shared system prompts, follow-up requests that extend an earlier one.
Trace generate_trace(std::size_t count, std::uint64_t seed);

}  // namespace demo
