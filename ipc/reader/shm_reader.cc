#include <moetap/read_transport.h>

#include "ipc/internal/shm_ends.h"

namespace moetap {

std::unique_ptr<SlotReadTransport> make_shm_reader(const Endpoint& endpoint) {
  endpoint.validate();
  return endpoint.layout == ShmLayout::wire ? make_wire_reader(endpoint)
                                            : make_native_reader(endpoint);
}

}  // namespace moetap
