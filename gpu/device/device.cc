#include <moetap/cuda_device.h>
#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/host_device.h>

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "lib/internal/numbers.h"

namespace moetap {

Buffer::Buffer(Device& device, void* data, std::size_t bytes,
               void (*release)(Device&, void*, std::size_t))
    : device_(&device), data_(data), bytes_(bytes), release_(release) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(release_, taken.release_);
  return *this;
}

Buffer::~Buffer() {
  if (release_ != nullptr) release_(*device_, data_, bytes_);
}

namespace {

// The N of "cuda" or "cuda:N".
std::optional<int> cuda_index(std::string_view name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  name.remove_prefix(5);
  const auto index = detail::parse_number<int>(name);
  return index && *index >= 0 ? index : std::nullopt;
}

}  // namespace

std::unique_ptr<Device> open_device(std::string_view name) {
  if (name == "host") return make_host_device();
  if (name == "inline") return make_inline_device();
  if (name == "auto") return why_no_cuda() ? make_host_device() : make_cuda_device(0);
  if (const auto index = cuda_index(name)) return make_cuda_device(*index);
  throw ArgumentError(fmt::format(
      "unknown device '{}': choose 'auto', 'host', 'inline', 'cuda' or 'cuda:N'", name));
}

}  // namespace moetap
