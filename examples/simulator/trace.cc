#include "examples/simulator/trace.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <random>

#include "lib/internal/json_text.h"
#include "lib/internal/numbers.h"

namespace demo {
namespace {

constexpr std::int64_t kMaxLength = 1'000'000'000;  // tokens of one request; positions are 32 bit
constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

// Ids of blocks that traces do not name: distinct from the small numbers that traces use.
constexpr std::uint64_t shared_block(std::uint64_t index) { return (3ULL << 62) | index; }
constexpr std::uint64_t own_block(std::uint64_t request, std::uint64_t index) {
  return (1ULL << 63) | (request << 24) | index;
}

std::int64_t prompt_blocks(std::int64_t tokens) {
  return (tokens + kPromptBlock - 1) / kPromptBlock;
}

// One line of a trace, for messages.
struct Line {
  const std::string& file;
  std::size_t number;
  std::string_view text;

  [[noreturn]] void fail(const std::string& why) const {
    throw moetap::ArgumentError(fmt::format("{}:{}: {}", file, number, why));
  }

  std::int64_t length(std::string_view field, std::int64_t value) const {
    if (value < 1 || value > kMaxLength) {
      fail(fmt::format("{} is {}; it must be 1 to {}", field, value, kMaxLength));
    }
    return value;
  }
};

std::int64_t parse_number(const Line& line, std::string_view field, std::string_view text) {
  const auto value = moetap::detail::parse_number<std::int64_t>(text);
  if (!value) line.fail(fmt::format("{} is '{}'; it must be a whole number", field, text));
  return line.length(field, *value);
}

// The lengths come without contents: start with one of the shared blocks, continue with the
// request's own.
Request parse_azure(const Line& line, std::uint64_t index) {
  std::array<std::string_view, 3> fields;
  std::string_view rest = line.text;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t comma = rest.find(',');
    if ((comma == rest.npos) != (i + 1 == fields.size())) {
      line.fail(fmt::format("'{}' does not have the three fields {}", line.text, kAzureHeader));
    }
    fields[i] = rest.substr(0, comma);
    rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
  }
  Request request;
  request.prompt = parse_number(line, "ContextTokens", fields[1]);
  request.output = parse_number(line, "GeneratedTokens", fields[2]);
  request.block_hashes.push_back(shared_block(mix(index) % kSharedPrompts));
  for (std::int64_t block = 1; block < prompt_blocks(request.prompt); ++block) {
    request.block_hashes.push_back(own_block(index, static_cast<std::uint64_t>(block)));
  }
  return request;
}

Request parse_mooncake(const Line& line) {
  const auto json =
      moetap::detail::parse_json(line.text, fmt::format("{}:{}", line.file, line.number));
  if (!json.is_object()) line.fail("no valid JSON object");
  const auto length = [&](const char* field) {
    const auto value = json.find(field);
    if (value == json.end() || !moetap::detail::is_integer(*value)) {
      line.fail(fmt::format("'{}' is not there or is not a whole number", field));
    }
    return line.length(field, value->get<std::int64_t>());
  };
  Request request;
  request.prompt = length("input_length");
  request.output = length("output_length");
  const auto hashes = json.find("hash_ids");
  if (hashes == json.end() || !hashes->is_array() ||
      !std::all_of(hashes->begin(), hashes->end(),
                   [](const auto& id) { return id.is_number_unsigned(); })) {
    line.fail("'hash_ids' is not there or is not a list of whole numbers from 0 on");
  }
  request.block_hashes = hashes->get<std::vector<std::uint64_t>>();
  if (static_cast<std::int64_t>(request.block_hashes.size()) != prompt_blocks(request.prompt)) {
    line.fail(fmt::format("hash_ids has {} ids; input_length {} makes {} blocks of {} tokens",
                          request.block_hashes.size(), request.prompt,
                          prompt_blocks(request.prompt), kPromptBlock));
  }
  return request;
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

Token Request::prompt_token(std::int64_t position) const {
  const std::uint64_t block = block_hashes[static_cast<std::size_t>(position / kPromptBlock)];
  const auto offset = static_cast<std::uint64_t>(position % kPromptBlock);
  return static_cast<Token>(mix(mix(block) + offset) % kVocabulary);
}

std::int64_t Trace::longest() const {
  std::int64_t longest = 0;
  for (const Request& request : requests) longest = std::max(longest, request.length());
  return longest;
}

Trace parse_trace(std::string_view text, const std::string& name, std::size_t count,
                  std::uint64_t seed) {
  Trace trace{name, {}};
  bool azure = false;
  std::size_t total = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const Line line{name, number, next_line(text)};
    if (number == 1) {
      azure = line.text == kAzureHeader;
      if (azure) continue;
      if (!line.text.starts_with('{')) {
        line.fail(
            fmt::format("'{:.60}' starts neither an Azure trace (its first line is '{}') nor "
                        "a Mooncake trace (a JSON object a line)",
                        line.text, kAzureHeader));
      }
    }
    if (line.text.empty()) {
      if (text.empty()) break;
      line.fail("empty line");
    }
    Request request = azure ? parse_azure(line, total) : parse_mooncake(line);
    ++total;
    if (trace.requests.size() < (count != 0 ? count : kDefaultRequests)) {
      request.name = fmt::format("{}:{}", name, number);
      request.seed = mix(seed + total);
      trace.requests.push_back(std::move(request));
    }
  }
  if (trace.requests.empty()) {
    throw moetap::ArgumentError(fmt::format("{}: the trace has no request", name));
  }
  if (total < count) {
    throw moetap::ArgumentError(
        fmt::format("{}: {} requests were asked for, the trace has {}", name, count, total));
  }
  return trace;
}

Trace load_trace(const std::filesystem::path& path, std::size_t count, std::uint64_t seed) {
  const std::string what = fmt::format("cannot read the trace {}", path.string());
  if (std::filesystem::is_directory(path)) throw moetap::SystemError(EISDIR, what);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw moetap::SystemError(errno, what);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) throw moetap::SystemError(errno, what);
  return parse_trace(text, path.filename().string(), count, seed);
}

Trace generate_trace(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](std::int64_t from, std::int64_t to) {  // both included, the same everywhere
    return from + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(to - from + 1));
  };
  Trace trace{"generated", {}};
  for (std::uint64_t i = 0; i < count; ++i) {
    Request request{fmt::format("generated:{}", i + 1), mix(seed + i + 1), 0, draw(8, 160), {}};
    // One in three continues an earlier request; the others share a system prompt.
    if (i > 0 && random() % 3 == 0) {
      const Request& earlier = trace.requests[random() % i];
      request.block_hashes = earlier.block_hashes;
      request.prompt = std::min<std::int64_t>(earlier.prompt + draw(16, 400), 2048);
    } else {
      request.block_hashes = {shared_block(random() % kSharedPrompts)};
      request.prompt = draw(64, 1500);
    }
    for (std::uint64_t b = request.block_hashes.size();
         static_cast<std::int64_t>(b) < prompt_blocks(request.prompt); ++b) {
      request.block_hashes.push_back(own_block(i, b));
    }
    trace.requests.push_back(std::move(request));
  }
  return trace;
}

}  // namespace demo
