// A part of the golden table between processes: the same hashes and bytes as on threads. Compiled
// twice, for MPI and for c10d.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "golden/runs.h"
#ifdef PRIDE_GOLDEN_MPI
#include "pride/comm/mpi_comm.h"
#else
#include "pride/comm/c10d_env.h"
#endif

namespace pride::golden {
namespace {

TEST(GoldenBetweenProcesses, RunsGiveTheRowsOfTheTable) {
#ifdef PRIDE_GOLDEN_MPI
  const auto comm = make_mpi_communicator();
#else
  const auto comm = make_c10d_communicator_from_env();
#endif
  const auto table = read_table(PRIDE_GOLDEN_TABLE);
  int rows = 0;
  for (const Variant& v : variants()) {
    for (const Case& run : runs_of(v, {comm->size()})) {
      // one bucket without overlap, several with it
      if (run.overlap != (run.bucket_coords == 3000)) continue;
      if (v.label == "native") continue;  // floats in the transport's own order
      const Row row = combined(*comm, run_rank(*comm, run));
      const std::string& expected = table.at(run.key());
      const std::string text = row.text(), hash = text.substr(0, text.find(' '));
      if (row.bound) {
        EXPECT_EQ(text, expected) << run.key();
      } else {
        EXPECT_EQ(hash, expected.substr(0, expected.find(' '))) << run.key();
      }
      ++rows;
    }
  }
  EXPECT_GT(rows, 50);
}

}  // namespace
}  // namespace pride::golden
