#include <moetap/error.h>
#include <moetap/reader.h>
#include <moetap/slots.h>

#include <fmt/format.h>

#include <utility>

#include "lib/internal/expert_ids.h"
#include "lib/internal/singleton.h"

namespace moetap {
namespace {

detail::Singleton<Reader>& process_reader() {
  static auto* reader = new detail::Singleton<Reader>("Reader");
  return *reader;
}

template <class Transport>
std::unique_ptr<Transport> not_null(std::unique_ptr<Transport> transport) {
  if (!transport) throw ArgumentError("a reader needs a transport, given is null");
  return transport;
}

}  // namespace

Reader::Reader(std::unique_ptr<SlotReadTransport> transport)
    : transport_(not_null(std::move(transport))) {}
Reader::~Reader() = default;

Reader& Reader::create(std::unique_ptr<SlotReadTransport> transport) {
  return process_reader().create(std::move(transport));
}
Reader& Reader::instance() { return process_reader().instance(); }
void Reader::destroy() { process_reader().destroy(); }

void Reader::put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
                 std::span<const RowState> states) {
  detail::require_rows(shape(), slots, rows, states);
  transport_->put(step, slots, rows, states);
}

Routes Reader::read(std::span<const BlockId> blocks, int block_size, TokenRange range,
                    std::span<const StepWindow> windows) {
  if (windows.size() != 1 && windows.size() != blocks.size()) {
    throw ArgumentError(fmt::format("{} step windows for {} blocks; give one, or one a block",
                                    windows.size(), blocks.size()));
  }
  const std::vector<Slot> slots = slots_of(blocks, block_size, range);
  std::vector<StepWindow> by_slot;
  if (windows.size() > 1) {
    by_slot.reserve(slots.size());
    for (std::int64_t position = range.start; position < range.end; ++position) {
      by_slot.push_back(windows[static_cast<std::size_t>(position / block_size)]);
    }
    windows = by_slot;
  }
  Routes routes(shape(), range, Routes::Unset());
  transport_->read(slots, windows, routes.bytes(), routes.states());
  return routes;
}

RequestReader::RequestReader(std::unique_ptr<RequestReadTransport> transport)
    : transport_(not_null(std::move(transport))) {}
RequestReader::~RequestReader() = default;

Routes RequestReader::take(RequestId request, TokenRange range, Milliseconds timeout) {
  Routes routes(shape(), range, Routes::Unset());
  transport_->take(request, range, routes.bytes(), routes.states(), timeout);
  return routes;
}

}  // namespace moetap
