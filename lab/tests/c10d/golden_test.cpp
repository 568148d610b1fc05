// The golden table between processes of a job that torchrun would start.
// SPDX-License-Identifier: Apache-2.0
#include "golden/between_processes.h"
#include "pride/comm/c10d_env.h"

TEST(GoldenBetweenProcesses, RunsGiveTheRowsOfTheTable) {
  pride::golden::expect_rows_of_table(*pride::make_c10d_communicator_from_env());
}
