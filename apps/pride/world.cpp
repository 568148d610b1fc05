// Threads or MPI, and how a job ends that failed.
// SPDX-License-Identifier: Apache-2.0
#include "world.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#if PRIDE_HAVE_MPI
#include "pride/comm/hybrid_comm.h"
#include "pride/comm/mpi_comm.h"
#endif

namespace pride::app {
namespace {

#if PRIDE_HAVE_MPI
void run_threads_of_processes(const Workers& workers, const RankBody& body) {
  try {
    run_hybrid_world(workers.per_process, [&](Communicator& comm) {
      check_workers(workers, comm);
      body(comm, true);
    });
  } catch (const std::exception& error) {
    int process = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    leave_job(process * workers.per_process, error);
  }
}

// False if this is no MPI job, or a single process that was asked for threads.
bool ran_as_processes(const Workers& workers, const RankBody& body) {
  if (!launched_by_mpi()) return false;
  const MpiEnvironment environment;
  if (workers.per_process > 0) {
    run_threads_of_processes(workers, body);
    return true;
  }
  const std::unique_ptr<Communicator> comm = make_mpi_communicator();
  if (comm->size() == 1 && workers.total > 0) return false;
  try {
    check_workers(workers, *comm);
    body(*comm, environment.thread_multiple());
  } catch (const std::exception& error) {
    leave_job(*comm, error);
  }
  return true;
}
#endif

}  // namespace

void check_workers(const Workers& workers, const Communicator& comm) {
  const int per_process = std::max(1, workers.per_process);
  PRIDE_CHECK(workers.total == 0 || workers.total == comm.size(), "--workers ", workers.total,
              ": this MPI job has ", comm.size() / per_process, " processes, and each is ",
              per_process == 1 ? std::string("a worker") : concat(per_process, " workers"),
              "; leave the flag out");
}

void leave_job(Communicator& comm, const std::exception& error) {
  comm.fail(error.what());
  leave_job(comm.rank(), error);
}

void leave_job(int rank, const std::exception& error) {
  const bool shared = dynamic_cast<const CommError*>(&error) != nullptr ||
                      dynamic_cast<const NonFiniteGradient*>(&error) != nullptr ||
                      dynamic_cast<const InvalidArgument*>(&error) != nullptr;
  if (rank == 0 || !shared) {
    std::cerr << "pride: error: rank " << rank << ": " << error.what() << std::endl;
  }
  // the peers get time to hear of it from us rather than from the launcher
  std::this_thread::sleep_for(std::chrono::seconds(1));
  std::_Exit(1);
}

int ranks_on_this_host(Communicator& comm) {
  using Name = std::array<char, 256>;
  Name mine{};
  gethostname(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  return static_cast<int>(std::ranges::count(all, mine));
}

void run_ranks(const Workers& workers, const RankBody& body) {
#if PRIDE_HAVE_MPI
  if (ran_as_processes(workers, body)) return;
#endif
  PRIDE_CHECK(workers.per_process == 0, "--threads-per-process ", workers.per_process,
              ": this is no MPI job; --workers says how many threads");
  run_world(workers.total == 0 ? kDefaultWorkers : workers.total,
            [&](Communicator& comm) { body(comm, true); });
}

}  // namespace pride::app
