#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/host_device.h>

#include <fmt/format.h>

#include <utility>

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

bool names_cuda(std::string_view name) {
  if (name == "cuda") return true;
  if (!name.starts_with("cuda:")) return false;
  name.remove_prefix(5);
  return !name.empty() && name.find_first_not_of("0123456789") == name.npos;
}

}  // namespace

std::unique_ptr<Device> open_device(std::string_view name) {
  if (name == "auto" || name == "host") return make_host_device();
  if (names_cuda(name)) {
    throw ArgumentError(fmt::format(
        "device '{}' is not available: this build of moetap has no CUDA device; use 'host' or "
        "'auto', or a moetap-gpu built where Meson finds the CUDA toolkit",
        name));
  }
  throw ArgumentError(
      fmt::format("unknown device '{}': choose 'auto', 'host', 'cuda' or 'cuda:N'", name));
}

}  // namespace moetap
