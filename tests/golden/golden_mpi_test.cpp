// The golden table between processes of MPI.
// SPDX-License-Identifier: Apache-2.0
#include "golden/between_processes.h"
#include "pride/comm/mpi_comm.h"

TEST(GoldenBetweenProcesses, RunsGiveTheRowsOfTheTable) {
  pride::golden::expect_rows_of_table(*pride::make_mpi_communicator());
}
