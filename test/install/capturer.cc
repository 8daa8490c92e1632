// A worker as a user would write it, on the installed headers: captures one step of two tokens,
// then stays until its standard input ends.
#include <moetap/capturer.h>
#include <moetap/host_device.h>
#include <moetap/transport.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "endpoint.h"

int main(int, char** argv) {
  auto device = moetap::make_host_device();
  auto stream = device->make_stream();
  moetap::Capturer capturer(moetap::make_shm_transport(*device, endpoint(argv[1])));
  capturer.bind(0);
  capturer.bind(1);

  const std::int32_t ids[2][2][2] = {{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}};  // [layer][token][top_k]
  const moetap::Slot slots[] = {9, 3};
  moetap::Buffer pinned = device->allocate_pinned(sizeof ids + sizeof slots);
  std::memcpy(pinned.data(), ids, sizeof ids);
  std::memcpy(pinned.data() + sizeof ids, slots, sizeof slots);
  moetap::Buffer memory = device->allocate(pinned.size());
  stream->copy(memory.data(), pinned.data(), pinned.size());

  capturer.begin_step({.step = 1, .num_tokens = 2}, *stream);
  for (int layer = 0; layer < 2; ++layer) {
    capturer.capture(layer,
                     {.data = memory.as<std::int32_t>() + 4 * layer,
                      .type = moetap::IdType::int32,
                      .rows = 2,
                      .columns = 2,
                      .row_stride = 2},
                     *stream);
  }
  capturer.publish(memory.as<moetap::Slot>(sizeof ids), *stream);
  while (std::getchar() != EOF) {
  }
}
