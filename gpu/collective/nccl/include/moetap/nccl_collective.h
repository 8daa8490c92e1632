// A Collective for GPUs, connected by NCCL. Link moetap-nccl.
#pragma once

#include <moetap/collective.h>
#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/types.h>

#include <array>
#include <cstddef>
#include <memory>

struct ncclComm;  // <nccl.h>: ncclComm_t is a pointer to it

namespace moetap {

// An ncclUniqueId. One rank makes it and sends it to all ranks over an existing connection.
using NcclId = std::array<std::byte, 128>;
MOETAP_API NcclId make_nccl_id();

// Gathers may be inside graphs; call launched() for each launch of such a graph. A gather queues
// one ncclAllGather if all parts have equal size, otherwise a group of broadcasts, in stream order.
// A thread checks ncclCommGetAsyncError every few milliseconds. If a gather is late or NCCL reports
// an error, the communicator is aborted, so that nothing stays blocked. `device` is the rank's GPU,
// opened by moetap (ArgumentError otherwise).

// Connects as rank `rank` of `size`, within `timeout`. TimeoutError. ArgumentError for a rank or
// size that is not valid, CollectiveError for what NCCL refuses.
[[nodiscard]] MOETAP_API std::unique_ptr<Collective> make_nccl_collective(Device& device,
                                                                          const NcclId& id,
                                                                          int size, int rank,
                                                                          Milliseconds timeout);

// Uses the engine's own communicator, which the engine destroys after this object. After a failed
// gather the communicator is already destroyed. A non-blocking communicator (ncclConfig_t::blocking
// = 0) keeps to the timeout also while NCCL connects the ranks, in the first gather.
[[nodiscard]] MOETAP_API std::unique_ptr<Collective> make_nccl_collective(Device& device,
                                                                          ncclComm* ranks,
                                                                          Milliseconds timeout);

}  // namespace moetap
