// A block store's file. The first byte says whether its checksum is set right, so that what lies
// after the checksum is reached too.
#include "ipc/store/block_file.h"

#include <boost/crc.hpp>

#include <vector>

#include "test/fuzz/target.h"

using namespace moetap;

namespace {

constexpr std::size_t kChecked = 16;  // the checksum is of what comes from here on

void set_checksum(std::span<std::byte> file) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(file.data() + kChecked, file.size() - kChecked);
  const std::uint32_t sum = crc.checksum();
  std::memcpy(file.data() + kChecked - sizeof sum, &sum, sizeof sum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const BlockFile format({.shape = ModelShape::uniform(2, 2, 16),
                                 .block_size = 2,
                                 .max_bytes = 1 << 20,
                                 .model_version = "w"});
  static const BlockKey key("block");
  fuzz::Input input({data, size});
  const bool mend = (input.take<std::uint8_t>() & 1) != 0;
  const auto rest = std::as_bytes(input.take_bytes(size));
  std::vector<std::byte> file(rest.begin(), rest.end());
  if (mend && file.size() >= kChecked) set_checksum(file);
  if (format.check(key, file) != BlockFile::Kind::good) return 0;

  std::vector<std::byte> again;
  format.encode(key, format.rows(file), again);
  fuzz::require(file == again, "a good file that encode() does not make");
  return 0;
}
