// mpi_comm: ranks are the processes of an MPI job (mpirun, srun). Any MPI-3.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>

#include "pride/communicator.h"

namespace pride {

// Initialises MPI (with MPI_THREAD_MULTIPLE requested) unless it is initialised, and finalises it
// only if this object initialised it. Keep one alive as long as any MPI communicator of pride. If a
// world of this process has failed, it does not finalise, so that the launcher ends the job instead
// of waiting.
class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  // True if a second thread may communicate at the same time (overlap needs it).
  bool thread_multiple() const noexcept { return thread_multiple_; }

 private:
  bool began_ = false;
  bool thread_multiple_ = false;
};

// A communicator over a duplicate of `comm`, which stays the caller's. Collective over `comm`.
// Throws InvalidArgument unless MPI is initialised and `comm` is an intra-communicator.
// Waits poll with MPI_Test and back off, so that ranks that share a core do not starve each other.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm = MPI_COMM_WORLD);

// True if this process was started by an MPI launcher (mpirun, mpiexec, or srun with PMI or PMIx)
// and not by a torchrun that such a launcher started.
bool launched_by_mpi() noexcept;

}  // namespace pride
