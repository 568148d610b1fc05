// mpi_comm: ranks are the processes of an MPI job (mpirun, srun). Any MPI-3. Programs that use MPI
// already: docs/cpp.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>

#include "pride/communicator.h"

namespace pride {

// Initialises MPI, requesting MPI_THREAD_MULTIPLE, and finalises it at its end. If MPI is
// initialised already, it does neither; such a program needs no MpiEnvironment. Destroy it after
// all MPI communicators of pride. If a world of this process has failed, it does not finalise MPI:
// that would wait for all ranks. When the process exits, the launcher ends the job.
class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  // True if MPI granted MPI_THREAD_MULTIPLE. OptimizerOptions::overlap needs it, as do programs
  // that call MPI on several threads.
  bool thread_multiple() const noexcept { return thread_multiple_; }

 private:
  bool began_ = false;
  bool thread_multiple_ = false;
};

// A communicator over a duplicate of `comm`, which stays the caller's. Collective over `comm`.
// Throws InvalidArgument unless MPI is initialised and `comm` is an intra-communicator.
// Waits poll with MPI_Test and sleep in between, because ranks may share a core.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm = MPI_COMM_WORLD);

// True if this process was started by an MPI launcher (mpirun, mpiexec, or srun with PMI or PMIx)
// and not by a torchrun that such a launcher started.
bool launched_by_mpi() noexcept;

}  // namespace pride
