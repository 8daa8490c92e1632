// The scheduler's end of the device transport with a host cache per request: collects the rows that
// the worker hands over when a request finishes, until they are taken.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ipc/ring/record_stream.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap {
namespace {

// Rows of consecutive positions from one record.
struct Chunk {
  std::int64_t position = 0;
  std::vector<RowState> states;
  std::vector<std::byte> rows;

  std::int64_t end() const { return position + static_cast<std::int64_t>(states.size()); }
};

struct Collected {
  std::vector<Chunk> chunks;  // ascending, without overlap
  std::int64_t num_tokens = 0;
  std::int64_t doubtful = 0;  // rows from here on are none, unless all are asked for
  bool complete = false;
};

// The requests that were taken last, so that taking one again is an error at once instead of a wait
// without end. Bounded: nothing may grow with the number of requests.
class TakenRequests {
 public:
  void add(RequestId request) {
    if (requests_.size() < kKept) {
      requests_.push_back(request);
    } else {
      requests_[next_] = request;
    }
    next_ = (next_ + 1) % kKept;
  }
  bool contains(RequestId request) const {
    return std::ranges::find(requests_, request) != requests_.end();
  }

 private:
  static constexpr std::size_t kKept = 4096;
  std::vector<RequestId> requests_;
  std::size_t next_ = 0;  // the oldest entry, when full
};

class RingRequestReader final : public RequestReadTransport {
 public:
  explicit RingRequestReader(const Endpoint& endpoint) : stream_(endpoint) {}

  const ModelShape& shape() const override { return stream_.endpoint().shape; }

  bool worker_alive() override { return stream_.producer_alive(); }
  DroppedSteps dropped() override { return stream_.outcomes().dropped(); }

  Step poll() override {
    while (stream_.next([this](const auto& item) { take_in(item); })) {
    }
    return stream_.outcomes().last();
  }

  void wait_for(Step step, Milliseconds timeout) override {
    stream_.until_step(step, timeout, [this](const auto& item) { take_in(item); });
  }

  void take(RequestId request, TokenRange range, std::span<std::byte> rows,
            std::span<RowState> states, Milliseconds timeout) override;

 private:
  using Item = RecordStream::Item;

  void take_in(const Item& item);
  void add_chunk(const Item& item);
  void complete(const Descriptor& descriptor);
  void require_sizes(TokenRange range, std::size_t rows, std::size_t states) const;
  void copy_out(const Chunk& chunk, TokenRange range, std::span<std::byte> rows,
                std::span<RowState> states) const;

  RecordStream stream_;
  bool may_be_cut_ = stream_.took_over();
  std::unordered_map<RequestId, Collected> requests_;
  TakenRequests taken_;
};

void RingRequestReader::take_in(const Item& item) {
  using Kind = Descriptor::Kind;
  const Descriptor& descriptor = item.descriptor;
  if (descriptor.kind != Kind::request) stream_.require_unchanged();
  switch (descriptor.kind) {
    case Kind::request:
      return add_chunk(item);
    case Kind::request_end:
      return complete(descriptor);
    case Kind::step_done:
      stream_.outcomes().require_next(descriptor.step, stream_.name());
      return stream_.outcomes().succeeded(descriptor.step);
    case Kind::failed_step:
      stream_.outcomes().require_next(descriptor.step, stream_.name());
      return stream_.outcomes().failed(descriptor.step, descriptor.text);
    case Kind::step:
      break;
  }
  stream_.throw_unexpected(
      item, "its worker sends rows by slot (HostCache::scheduler), use make_device_reader");
}

void RingRequestReader::add_chunk(const Item& item) {
  const Descriptor& descriptor = item.descriptor;
  const auto fail = [&](const std::string& what) {
    throw MismatchError(
        fmt::format("{} holds rows of positions [{}, {}) of request {}, {}: its memory was "
                    "overwritten, restart both ends",
                    stream_.name(), descriptor.position,
                    descriptor.position + descriptor.num_tokens, descriptor.request, what));
  };
  const auto count = static_cast<std::size_t>(descriptor.num_tokens);
  const std::size_t rows_at = (count + 63) / 64 * 64;
  const std::size_t rows_bytes = count * shape().row_bytes();
  // A step's record of as many tokens is longer: it has a slot of 8 bytes for each.
  const auto found = requests_.find(descriptor.request);
  if (found != requests_.end()) {
    const Collected& collected = found->second;
    if (collected.complete) fail("but the request had ended");
    if (!collected.chunks.empty() && collected.chunks.back().end() > descriptor.position) {
      fail(fmt::format("but rows up to {} had come", collected.chunks.back().end()));
    }
  }

  const auto* from = reinterpret_cast<const RowState*>(item.bytes.data());
  const std::span<const std::byte> rows = item.bytes.subspan(rows_at, rows_bytes);
  Chunk chunk{descriptor.position, {from, from + count}, {rows.begin(), rows.end()}};
  stream_.require_unchanged();
  for (const RowState state : chunk.states) {
    if (state != RowState::present && state != RowState::missing) {
      fail(fmt::format("one of them in state {}", static_cast<int>(state)));
    }
  }
  Collected& collected = requests_[descriptor.request];
  collected.num_tokens += descriptor.num_tokens;
  collected.chunks.push_back(std::move(chunk));
}

void RingRequestReader::complete(const Descriptor& descriptor) {
  const auto found = requests_.find(descriptor.request);
  const std::int64_t came = found == requests_.end() ? 0 : found->second.num_tokens;
  // The records of a request are consecutive. So only the first request to end can have begun
  // before this reader took over; rows that an earlier reader took in are missing.
  const bool cut = std::exchange(may_be_cut_, false) && came < descriptor.num_tokens;
  if ((came != descriptor.num_tokens && !cut) ||
      (found != requests_.end() && found->second.complete)) {
    throw MismatchError(fmt::format(
        "{} ends request {} after {} rows, but {} came: its memory was overwritten, restart both "
        "ends",
        stream_.name(), descriptor.request, descriptor.num_tokens, came));
  }
  Collected& collected = requests_[descriptor.request];
  collected.doubtful = descriptor.position;
  collected.complete = true;
}

void RingRequestReader::require_sizes(TokenRange range, std::size_t rows,
                                      std::size_t states) const {
  if (range.start < 0 || range.end < range.start) {
    throw ArgumentError(
        fmt::format("positions [{}, {}); allowed are 0 <= start <= end", range.start, range.end));
  }
  const auto count = static_cast<std::size_t>(range.size());
  if (states != count || rows != count * shape().row_bytes()) {
    throw ArgumentError(
        fmt::format("{} states and {} bytes of rows for positions [{}, {}): {} states and {} bytes "
                    "a row are needed",
                    states, rows, range.start, range.end, count, shape().row_bytes()));
  }
}

void RingRequestReader::take(RequestId request, TokenRange range, std::span<std::byte> rows,
                             std::span<RowState> states, Milliseconds timeout) {
  require_sizes(range, rows.size(), states.size());
  auto found = requests_.find(request);
  if (found == requests_.end() && taken_.contains(request)) {
    throw StateError(fmt::format(
        "request {} was taken before, and its rows were moved out then: take each once", request));
  }
  const auto complete = [&] {
    found = requests_.find(request);
    return found != requests_.end() && found->second.complete;
  };
  stream_.until(
      complete, timeout,
      fmt::format("the rows of request {} (one that no step wanted a token of has none)", request),
      [this](const auto& item) { take_in(item); });

  std::ranges::fill(rows, std::byte{0xFF});
  std::ranges::fill(states, RowState::missing);
  const Collected& collected = found->second;
  const bool all = collected.chunks.empty() || range.end >= collected.chunks.back().end() ||
                   MOETAP_OFF("H30 a last span of which not all stands");
  const std::int64_t end = all ? range.end : std::min(range.end, collected.doubtful);
  for (const Chunk& chunk : collected.chunks) {
    copy_out(chunk, {range.start, end}, rows, states);
  }
  requests_.erase(found);
  taken_.add(request);
}

void RingRequestReader::copy_out(const Chunk& chunk, TokenRange range, std::span<std::byte> rows,
                                 std::span<RowState> states) const {
  const std::size_t row_bytes = shape().row_bytes();
  const std::int64_t end = std::min(range.end, chunk.end());
  for (std::int64_t position = std::max(range.start, chunk.position); position < end; ++position) {
    const auto from = static_cast<std::size_t>(position - chunk.position);
    if (chunk.states[from] != RowState::present) continue;
    const auto to = static_cast<std::size_t>(position - range.start);
    std::memcpy(&rows[to * row_bytes], &chunk.rows[from * row_bytes], row_bytes);
    states[to] = RowState::present;
  }
}

}  // namespace

std::unique_ptr<RequestReadTransport> make_request_reader(const Endpoint& endpoint) {
  return std::make_unique<RingRequestReader>(endpoint);
}

}  // namespace moetap
