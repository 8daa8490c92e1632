// The program of one rank. Says on its output what went wrong, and lives until its input (which MPI
// gives to rank 0) ends: the rank that publishes owns the memory that the test reads.
#include <moetap/error.h>
#include <moetap/host_device.h>

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include "test/ranks/rank.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>

// What MPI, and what it loads, holds is not ours to free.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\nleak:libopen-rte.so\nleak:libopen-pal.so\nleak:libpmix\nleak:libevent\n"
         "leak:libhwloc\nleak:openmpi/lib\nleak:pmix2/lib\n";
}
// To tell who it was that called libc.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "fast_unwind_on_malloc=0"; }
extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
#endif

namespace moetap::test {
namespace {

// While MPI's modules are loaded: afterwards it is not known what was whose.
void find_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_leak_check();
#endif
}

void say(int rank, const char* kind, const std::exception& error) {
  std::printf("rank %d: %s: %s\n", rank, kind, error.what());
  std::fflush(stdout);
}

// Runs `call`, and says what it throws.
template <class Call>
bool attempt(int rank, Call&& call) {
  try {
    call();
    return true;
  } catch (const StepFailed& error) {
    say(rank, "StepFailed", error);
  } catch (const TimeoutError& error) {
    say(rank, "TimeoutError", error);
  } catch (const MismatchError& error) {
    say(rank, "MismatchError", error);
  } catch (const CollectiveError& error) {
    say(rank, "CollectiveError", error);
  } catch (const StateError& error) {
    say(rank, "StateError", error);
  }
  return false;
}

// Whether all went well, so that the ranks may still meet.
bool run(const Plan& plan, const Topology& topology, int rank, Device& device, MPI_Comm tp_ranks,
         std::unique_ptr<Rank>& own) {
  if (!attempt(rank, [&] { own = std::make_unique<Rank>(plan, topology, device, tp_ranks); })) {
    return false;
  }
  for (Step step = 1; step <= static_cast<Step>(plan.steps); ++step) {
    if (attempt(rank, [&] { own->run(step); })) continue;
    attempt(rank, [&] { own->ranks().check(); });
    return false;
  }
  const bool finished = attempt(rank, [&] { own->finish(static_cast<Step>(plan.steps)); });
  return attempt(rank, [&] { own->ranks().check(); }) && finished;
}

void wait_for_end_of_input() {
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int main_of(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const Plan plan = Plan::parse(argc, argv);
  const Topology topology = plan.topology(rank);
  MPI_Comm tp_ranks = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, topology.dp_rank * plan.pp + topology.pp_rank, topology.tp_rank,
                 &tp_ranks);
  bool good = true;
  {
    const std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<Rank> own;
    if (topology.captures()) good = run(plan, topology, rank, *device, tp_ranks, own);
    if (rank == 0) wait_for_end_of_input();
    if (!good) {  // the others may be gone: do not wait for them
      own.reset();
      std::_Exit(0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Comm_free(&tp_ranks);
  find_leaks();
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace moetap::test

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // when mpirun is killed
  try {
    return moetap::test::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ranks_worker: %s\n", error.what());
    std::_Exit(1);
  }
}
