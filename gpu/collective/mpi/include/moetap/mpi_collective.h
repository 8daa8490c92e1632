// Ranks that are processes on machines without GPUs, connected by MPI. Link moetap-mpi.
#pragma once

#include <moetap/collective.h>
#include <moetap/error.h>
#include <moetap/types.h>

#include <mpi.h>

#include <memory>

namespace moetap {

// The ranks of `ranks`, a communicator that nobody else uses meanwhile (MPI_Comm_dup) and that the
// caller frees. MPI runs on the streams' threads: it must have been started with
// MPI_THREAD_MULTIPLE (StateError), and may be finalised only when the streams are done. The device
// must be a host device (ArgumentError), since MPI reads its memory.
//
// A gather blocks its stream until every rank's part is there, for `limit` at most: TimeoutError
// with the ranks that are missing, MismatchError with one whose counts are others.
// The parts are sent from rank to rank, so that this is known. gather() on a stream that records a
// graph is a StateError: gather before or after the graph.
std::unique_ptr<Collective> make_mpi_collective(Device& device, MPI_Comm ranks, Milliseconds limit);

}  // namespace moetap
