// A Collective for processes on machines without GPUs, connected by MPI. Link moetap-mpi.
#pragma once

#include <moetap/collective.h>
#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/types.h>

#include <mpi.h>

#include <memory>

namespace moetap {

// Connects the ranks of the communicator `ranks`. Nothing else may use the communicator meanwhile
// (so make it with MPI_Comm_dup); the caller frees it. MPI calls run on the streams' threads. So
// MPI must be initialised with MPI_THREAD_MULTIPLE (StateError), and finalised only when the
// streams are done. The device must be a host device (ArgumentError), as MPI reads its memory.
//
// A gather blocks its stream until every rank's part has arrived, for at most `timeout`.
// TimeoutError with the missing ranks, MismatchError with a rank whose counts differ. Parts are
// sent point to point, so that the missing rank is known. gather() on a stream that records a graph
// is a StateError: gather before or after the graph.
[[nodiscard]] MOETAP_API std::unique_ptr<Collective> make_mpi_collective(Device& device,
                                                                         MPI_Comm ranks,
                                                                         Milliseconds timeout);

}  // namespace moetap
