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
#include "pride/comm/mpi_comm.h"
#endif

namespace pride::app {
namespace {

#if PRIDE_HAVE_MPI
// False if this is no MPI job, or a single process that was asked for threads.
bool ran_as_processes(int workers, const RankBody& body) {
  if (!launched_by_mpi()) return false;
  const MpiEnvironment environment;
  const std::unique_ptr<Communicator> comm = make_mpi_communicator();
  if (comm->size() == 1 && workers > 0) return false;
  try {
    PRIDE_CHECK(workers == 0 || workers == comm->size(), "--workers ", workers,
                ": this MPI job has ", comm->size(),
                " processes, and each is a worker; leave the flag out");
    body(*comm, environment.thread_multiple());
  } catch (const std::exception& error) {
    leave_job(*comm, error);
  }
  return true;
}
#endif

}  // namespace

void leave_job(Communicator& comm, const std::exception& error) {
  comm.fail(error.what());
  const bool shared = dynamic_cast<const CommError*>(&error) != nullptr ||
                      dynamic_cast<const NonFiniteGradient*>(&error) != nullptr ||
                      dynamic_cast<const InvalidArgument*>(&error) != nullptr;
  if (comm.rank() == 0 || !shared) {
    std::cerr << "pride: error: rank " << comm.rank() << ": " << error.what() << std::endl;
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

void run_ranks(int workers, const RankBody& body) {
#if PRIDE_HAVE_MPI
  if (ran_as_processes(workers, body)) return;
#endif
  run_world(workers == 0 ? kDefaultWorkers : workers,
            [&](Communicator& comm) { body(comm, true); });
}

}  // namespace pride::app
