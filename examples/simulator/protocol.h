// The messages between the scheduler and a worker, over a Unix socket: the configuration once, then
// a plan and a reply for each step. Routes are never sent here: moetap transfers them.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/simulator/plan.h"

namespace demo {

enum class Message : std::uint32_t {
  configure,  // scheduler -> worker: WorkerConfig
  ready,      // worker -> scheduler: the device's name
  plan,       // scheduler -> worker: StepPlan
  reply,      // worker -> scheduler: StepReply
  error,      // worker -> scheduler: why it ends
};

// One end of a connected stream socket. Messages arrive complete and in order.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }

  // moetap::SystemError if the other end is gone.
  void send(Message message, std::span<const std::byte> payload);
  void send(Message message, const std::string& text);

  // Waits for the next message; the payload is valid until the next call. Nothing when the other
  // end has closed; moetap::MismatchError for anything that is not a message.
  struct Received {
    Message message;
    std::span<const std::byte> payload;
  };
  std::optional<Received> receive();

  // Whether receive() would return without waiting; waits up to `timeout` for that.
  bool readable(moetap::Milliseconds timeout);

  // Whether the next message is an error, or the other process has ended. Never waits.
  bool failed();

  // Tells the other end that nothing more will be sent.
  void finish();

 private:
  bool receive_bytes(void* to, std::size_t bytes);

  int fd_ = -1;
  std::vector<std::byte> buffer_;
};

std::string to_text(std::span<const std::byte> payload);

enum class TransportKind : std::uint8_t { shm, device };
std::string transport_name(TransportKind kind);

struct WorkerConfig {
  moetap::Endpoint endpoint;
  int dp_size = 1;  // workers in all
  int block_size = 16;
  TransportKind transport = TransportKind::shm;
  bool rows_by_request = false;  // device transport: HostCache::per_request
  std::string device = "auto";
  double step_ms = 0;      // the minimum time of the simulated forward pass
  bool drafts = false;     // there is a draft model
  double reject_rate = 0;  // of its tokens
};

std::string encode(const WorkerConfig& config);
// moetap::ArgumentError for text that encode() does not produce.
WorkerConfig decode_config(const std::string& text);

// A plan as the worker sees it, within the received payload.
struct PlanView {
  Step step = 0;
  std::int64_t num_tokens = 0;
  std::span<const PlanEnd> ended;
  std::span<const PlanSpan> spans;
  std::span<const BlockId> blocks;
  std::span<const moetap::TokenRange> wanted;
  std::span<const Token> tokens;
};

// `out` is scratch that is reused.
void encode(const StepPlan& plan, std::vector<std::byte>& out);
// moetap::MismatchError if the sizes contradict each other.
PlanView decode_plan(std::span<const std::byte> payload);

struct StepTimes {
  Step step = 0;
  std::int64_t forward_end_ns = 0;  // CLOCK_MONOTONIC, when the forward pass was done
  std::int64_t moetap_ns = 0;       // that the worker spent in begin_step() and publish()
};

struct StepReply {
  StepTimes times;
  std::span<const std::int32_t> counts;  // tokens of each span that samples
  std::span<const Token> sampled;
};

void encode(const StepReply& reply, std::vector<std::byte>& out);
StepReply decode_reply(std::span<const std::byte> payload);

// CLOCK_MONOTONIC, the same for all processes of a machine.
std::int64_t monotonic_ns();

}  // namespace demo
