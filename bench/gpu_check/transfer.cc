
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <numeric>
#include <system_error>

#include "bench/gpu_check/checks.h"
#include "bench/gpu_check/timing.h"
#include "bench/workload.h"
#include "gpu/internal/device_cache.h"
#include "lib/internal/step_record.h"

namespace moetap::bench {
namespace {

// Memory like that of the transports' rings: shared, and then pinned.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { munmap(data_, bytes_); }

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_;
  std::size_t bytes_;
};

double gb_per_s(std::size_t bytes, double us) { return static_cast<double>(bytes) / us / 1000; }

void check_model(Device& device, const char* name, std::int64_t tokens, Figures& figures) {
  const ModelShape shape = ModelShape::known(name);
  const auto stream = device.make_stream();
  DeviceCache cache(device, shape, tokens, "gpu_check");
  const StepRecordLayout layout(shape, tokens);
  const Buffer record = device.allocate(layout.bytes);
  const Buffer copy = device.allocate(layout.bytes);
  const Buffer pinned = device.allocate_pinned(layout.bytes);
  const SharedMemory shared(layout.bytes);
  const Buffer ring = device.pin(shared.bytes());
  const Buffer slots = device.allocate(static_cast<std::size_t>(tokens) * sizeof(Slot));
  stream->fill(slots.data(), 0, slots.size());
  cache.begin_step(1, tokens, 0, *stream);

  const int count = tokens > 1024 ? 20 : 100;
  const double snapshot = us_each(*stream, count, [&] {
    cache.snapshot(slots.as<const Slot>(), tokens, tokens, record.data(), *stream);
  });
  const double device_copy =
      us_each(*stream, count, [&] { stream->copy(copy.data(), record.data(), layout.bytes); });
  const double to_ring =
      us_each(*stream, count, [&] { stream->copy(ring.data(), record.data(), layout.bytes); });
  const double to_pinned =
      us_each(*stream, count, [&] { stream->copy(pinned.data(), record.data(), layout.bytes); });

  const std::string what = fmt::format("{}/{}", name, tokens);
  const auto rows = static_cast<std::size_t>(tokens) * shape.row_ids();
  const double snapshot_rate = gb_per_s(rows * sizeof(std::uint16_t) + layout.bytes, snapshot);
  const double copy_rate = gb_per_s(2 * layout.bytes, device_copy);
  figures.push_back({"snapshot/" + what, snapshot_rate, "GB/s"});
  figures.push_back({"device copy/" + what, copy_rate, "GB/s"});
  figures.push_back({"snapshot of a device copy/" + what, snapshot_rate / copy_rate, "",
                     std::nullopt, tokens > 1024 ? std::optional(0.7) : std::nullopt});
  figures.push_back({"snapshot takes/" + what, snapshot, "us"});
  figures.push_back({"to the ring/" + what, gb_per_s(layout.bytes, to_ring), "GB/s"});
  figures.push_back({"to pinned memory/" + what, gb_per_s(layout.bytes, to_pinned), "GB/s"});
  figures.push_back(
      {"ring of pinned/" + what, to_pinned / to_ring, "", std::nullopt, std::optional(0.9)});
}

}  // namespace

void check_transfer(Device& device, Figures& figures) {
  for (const char* name : kModels) {
    for (const std::int64_t tokens : {256, 8192}) check_model(device, name, tokens, figures);
  }
}

}  // namespace moetap::bench
