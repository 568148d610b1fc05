// main() of GoogleTest programs that run under mpirun: all ranks run the same cases together.
// SPDX-License-Identifier: Apache-2.0
//
// Each rank's exit status is not 0 if a rank failed.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

#include "support/rank_printer.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int level = MPI_THREAD_SINGLE, rank = 0, world = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const int promised = pride::ranks::promised_world(argc, argv);
  if (world != promised || level != MPI_THREAD_MULTIPLE) {
    std::fprintf(stderr, "rank %d of %d, thread level %d; --world promised %d ranks\n", rank, world,
                 level, promised);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int failed = pride::ranks::run_tests_as(rank);
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
