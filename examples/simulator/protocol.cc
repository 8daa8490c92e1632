#include "examples/simulator/protocol.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "lib/internal/json_text.h"
#include "lib/internal/number_format.h"

namespace demo {
namespace {

using Json = nlohmann::json;

struct Header {
  Message message;
  std::uint32_t magic;
  std::uint64_t bytes;
};
constexpr std::uint32_t kMagic = 0x6d6f6574;
constexpr std::uint64_t kMaxBytes = 1ULL << 30;

struct PlanHeader {
  Step step;
  std::int64_t num_tokens;
  std::uint64_t ended;
  std::uint64_t spans;
  std::uint64_t blocks;
  std::uint64_t wanted;
  std::uint64_t tokens;
};

struct ReplyHeader {
  StepTimes times;
  std::uint64_t counts;
  std::uint64_t sampled;
};

template <class T>
void put(std::vector<std::byte>& out, std::span<const T> values) {
  if (values.empty()) return;
  const std::size_t end = out.size();
  out.resize(end + values.size_bytes());
  std::memcpy(out.data() + end, values.data(), values.size_bytes());
}

// Takes `count` values off the front of a payload. Parts are in descending order of alignment.
template <class T>
std::span<const T> take(std::span<const std::byte>& payload, std::uint64_t count) {
  if (count > payload.size() / sizeof(T)) {
    throw moetap::MismatchError(
        fmt::format("a message announces {} values of {} bytes and has {} bytes left", count,
                    sizeof(T), payload.size()));
  }
  const auto part = payload.first(count * sizeof(T));
  payload = payload.subspan(part.size());
  return {reinterpret_cast<const T*>(part.data()), count};
}

void expect_end(std::span<const std::byte> payload) {
  if (!payload.empty()) {
    throw moetap::MismatchError(fmt::format("a message has {} bytes too many", payload.size()));
  }
}

// The rest of a plan's parts, after its spans took theirs.
struct Part {
  const PlanView& plan;
  const char* what;
  std::int64_t left;

  void take(std::int64_t count, std::int64_t least) {
    if (count < least || count > left) {
      throw moetap::MismatchError(
          fmt::format("step {} has {} {} left for a span of {}", plan.step, left, what, count));
    }
    left -= count;
  }
  void expect_end() const {
    if (left != 0) {
      throw moetap::MismatchError(
          fmt::format("step {} has {} {} that are in no span", plan.step, left, what));
    }
  }
};

void check_spans(const PlanView& plan) {
  Part all{plan, "tokens", plan.num_tokens};
  Part known{plan, "known tokens", std::ssize(plan.tokens)};
  Part blocks{plan, "blocks", std::ssize(plan.blocks)};
  for (const PlanSpan& span : plan.spans) {
    if (span.kind > SpanKind::decode) {
      throw moetap::MismatchError(fmt::format("step {} has a span of kind {}", plan.step,
                                              static_cast<std::uint32_t>(span.kind)));
    }
    all.take(span.count, 1);
    if (span.kind != SpanKind::decode) known.take(span.count, 1);
    blocks.take(span.new_blocks, 0);
  }
  all.expect_end();
  known.expect_end();
  blocks.expect_end();
}

constexpr std::string_view kConfig = "a worker's configuration";

const Json& member(const Json& json, const char* name) {
  if (json.is_object() && json.contains(name)) return json[name];
  throw moetap::ArgumentError(fmt::format("{} has no \"{}\"", kConfig, name));
}

// Requires exactly this type: the library would convert a boolean to a number.
const Json& member(const Json& json, const char* name, Json::value_t type) {
  const Json& value = member(json, name);
  if (value.type() == type) return value;
  throw moetap::ArgumentError(fmt::format("\"{}\" of {} is {}, which must be of type {}", name,
                                          kConfig, moetap::detail::shown(value),
                                          Json(type).type_name()));
}

template <class T>
T whole(const char* name, const Json& value) {
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(moetap::detail::integer(name, value, Limits::min(), Limits::max()));
}

template <class T>
T number(const Json& json, const char* name) {
  return whole<T>(name, member(json, name));
}

bool flag(const Json& json, const char* name) { return member(json, name, Json::value_t::boolean); }

TransportKind transport_named(const Json& name) {
  for (const TransportKind kind : {TransportKind::shm, TransportKind::device}) {
    if (name == transport_name(kind)) return kind;
  }
  throw moetap::ArgumentError(
      fmt::format("{} has the transport {}", kConfig, moetap::detail::shown(name)));
}

}  // namespace

Socket::Socket(Socket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void Socket::send(Message message, std::span<const std::byte> payload) {
  Header header{message, kMagic, payload.size()};
  iovec parts[] = {{&header, sizeof header},
                   {const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr call{};
  call.msg_iov = parts;
  call.msg_iovlen = 2;
  for (std::size_t left = sizeof header + payload.size(); left > 0;) {
    const ssize_t sent = ::sendmsg(fd_, &call, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      throw moetap::SystemError(errno, "cannot send to the other process");
    }
    left -= static_cast<std::size_t>(sent);
    auto skip = static_cast<std::size_t>(sent);
    for (iovec& part : parts) {
      const std::size_t n = std::min(skip, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + n;
      part.iov_len -= n;
      skip -= n;
    }
  }
}

void Socket::send(Message message, const std::string& text) {
  send(message, std::as_bytes(std::span(text)));
}

std::optional<Socket::Received> Socket::receive() {
  Header header{};
  if (!receive_bytes(&header, sizeof header)) return std::nullopt;
  if (header.magic != kMagic || header.message > Message::error || header.bytes > kMaxBytes) {
    throw moetap::MismatchError("what the other process sent is no message of this program");
  }
  buffer_.resize(header.bytes);
  if (!receive_bytes(buffer_.data(), buffer_.size())) return std::nullopt;
  return Received{header.message, buffer_};
}

// False when the other end has closed (or died: a reset connection is the same to us).
bool Socket::receive_bytes(void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::recv(fd_, static_cast<std::byte*>(to) + done, bytes - done, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return false;
    if (got < 0 && errno != EINTR) {
      throw moetap::SystemError(errno, "cannot receive from the other process");
    }
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return true;
}

bool Socket::readable(moetap::Milliseconds timeout) {
  pollfd poll{fd_, POLLIN, 0};
  const int ready = ::poll(&poll, 1, static_cast<int>(timeout.count()));
  if (ready < 0 && errno != EINTR) throw moetap::SystemError(errno, "cannot poll a socket");
  return ready > 0;
}

bool Socket::failed() {
  Header header{};
  const ssize_t got = ::recv(fd_, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (got == static_cast<ssize_t>(sizeof header)) return header.message == Message::error;
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

void Socket::finish() { ::shutdown(fd_, SHUT_WR); }

std::string to_text(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

std::string transport_name(TransportKind kind) {
  return kind == TransportKind::shm ? "shm" : "device";
}

std::string encode(const WorkerConfig& config) {
  const moetap::Endpoint& e = config.endpoint;
  return Json{{"instance", e.instance},
              {"dp_rank", e.dp_rank},
              {"dp_size", config.dp_size},
              {"block_size", config.block_size},
              {"moe_layers", e.shape.moe_layers()},
              {"top_k", e.shape.top_k()},
              {"num_experts", e.shape.num_experts()},
              {"num_hidden_layers", e.shape.num_hidden_layers()},
              {"repeats_experts", e.shape.repeats_experts()},
              {"weight_type", static_cast<int>(e.shape.weight_type())},
              {"num_slots", e.num_slots},
              {"max_tokens", e.max_tokens},
              {"ring_depth", e.ring_depth},
              {"wire_layout", e.layout == moetap::ShmLayout::wire},
              {"timeout_ms", e.timeout.count()},
              {"transport", transport_name(config.transport)},
              {"rows_by_request", config.rows_by_request},
              {"device", config.device},
              {"step_ms", config.step_ms},
              {"drafts", config.drafts},
              {"reject_rate", config.reject_rate}}
      .dump();
}

WorkerConfig decode_config(const std::string& text) {
  const Json json = moetap::detail::parse_json(text, kConfig);
  // One by one: g++ 12 destroys members twice when a braced list of them throws half-way.
  std::vector<int> layers;
  for (const Json& layer : member(json, "moe_layers", Json::value_t::array)) {
    layers.push_back(whole<int>("moe_layers", layer));
  }
  const auto weights = number<std::uint8_t>(json, "weight_type");
  const moetap::ModelShape shape =
      moetap::ModelShape(layers, number<int>(json, "top_k"), number<int>(json, "num_experts"),
                         number<int>(json, "num_hidden_layers"))
          .with_repeated_experts(flag(json, "repeats_experts"))
          .with_weights(static_cast<moetap::WeightType>(weights));
  WorkerConfig config{.endpoint = {.instance = {}, .shape = shape}};
  moetap::Endpoint& e = config.endpoint;
  e.instance = member(json, "instance", Json::value_t::string).get<std::string>();
  e.dp_rank = number<int>(json, "dp_rank");
  e.num_slots = number<std::int64_t>(json, "num_slots");
  e.max_tokens = number<std::int64_t>(json, "max_tokens");
  e.ring_depth = number<int>(json, "ring_depth");
  if (flag(json, "wire_layout")) e.layout = moetap::ShmLayout::wire;
  e.timeout = moetap::Milliseconds(number<std::int64_t>(json, "timeout_ms"));
  config.dp_size = number<int>(json, "dp_size");
  config.block_size = number<int>(json, "block_size");
  config.transport = transport_named(member(json, "transport", Json::value_t::string));
  config.rows_by_request = flag(json, "rows_by_request");
  config.device = member(json, "device", Json::value_t::string).get<std::string>();
  config.step_ms = member(json, "step_ms", Json::value_t::number_float);
  config.drafts = flag(json, "drafts");
  config.reject_rate = member(json, "reject_rate", Json::value_t::number_float);
  return config;
}

void encode(const StepPlan& plan, std::vector<std::byte>& out) {
  const PlanHeader header{plan.step,         plan.num_tokens,    plan.ended.size(),
                          plan.spans.size(), plan.blocks.size(), plan.wanted.size(),
                          plan.tokens.size()};
  out.clear();
  put(out, std::span(&header, 1));
  put(out, std::span(plan.ended));
  put(out, std::span(plan.spans));
  put(out, std::span(plan.blocks));
  put(out, std::span(plan.wanted));
  put(out, std::span(plan.tokens));
}

PlanView decode_plan(std::span<const std::byte> payload) {
  const PlanHeader header = take<PlanHeader>(payload, 1)[0];
  PlanView plan;
  plan.step = header.step;
  plan.num_tokens = header.num_tokens;
  plan.ended = take<PlanEnd>(payload, header.ended);
  plan.spans = take<PlanSpan>(payload, header.spans);
  plan.blocks = take<BlockId>(payload, header.blocks);
  plan.wanted = take<moetap::TokenRange>(payload, header.wanted);
  plan.tokens = take<Token>(payload, header.tokens);
  expect_end(payload);
  check_spans(plan);
  return plan;
}

void encode(const StepReply& reply, std::vector<std::byte>& out) {
  const ReplyHeader header{reply.times, reply.counts.size(), reply.sampled.size()};
  out.clear();
  put(out, std::span(&header, 1));
  put(out, reply.counts);
  put(out, reply.sampled);
}

StepReply decode_reply(std::span<const std::byte> payload) {
  const ReplyHeader header = take<ReplyHeader>(payload, 1)[0];
  StepReply reply;
  reply.times = header.times;
  reply.counts = take<std::int32_t>(payload, header.counts);
  reply.sampled = take<Token>(payload, header.sampled);
  expect_end(payload);
  return reply;
}

std::int64_t monotonic_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace demo
