// Ranks that are GPUs, connected by NCCL. Link moetap-nccl.
#pragma once

#include <moetap/collective.h>
#include <moetap/error.h>
#include <moetap/types.h>

#include <array>
#include <cstddef>
#include <memory>

struct ncclComm;  // <nccl.h>: ncclComm_t is a pointer to it

namespace moetap {

// A ncclUniqueId: made by one rank, given to all of them by whatever connects them already.
using NcclId = std::array<std::byte, 128>;
NcclId make_nccl_id();

// Gathers may be inside graphs; call launched() for each launch of such a graph. A gather queues
// one ncclAllGather where all parts are equal, else a group of broadcasts, in the stream's order.
// Once one is late or NCCL reports an error (ncclCommGetAsyncError, looked at every few
// milliseconds by a thread), the communicator is aborted, so that nothing stays blocked. `device`
// is a GPU of ours (ArgumentError), and the rank's.

// Becomes rank `rank` of `size`, within `limit`: TimeoutError, ArgumentError for numbers that make
// no sense, CollectiveError for what NCCL refuses.
std::unique_ptr<Collective> make_nccl_collective(Device& device, const NcclId& id, int size,
                                                 int rank, Milliseconds limit);

// The engine's own communicator, which it destroys after this object, except if a gather failed:
// then it is gone. One that is not blocking (ncclConfig_t::blocking = 0) keeps to the limit also
// while NCCL connects the ranks, in the first gather.
std::unique_ptr<Collective> make_nccl_collective(Device& device, ncclComm* ranks,
                                                 Milliseconds limit);

}  // namespace moetap
