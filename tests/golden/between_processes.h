// A part of the golden table between processes: the same hashes and bytes as on threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "golden/runs.h"

namespace pride::golden {

inline void expect_rows_of_table(Communicator& comm) {
  const auto table = read_table(PRIDE_GOLDEN_TABLE);
  int rows = 0;
  for (const Variant& v : variants()) {
    for (const Case& run : runs_of(v, {comm.size()})) {
      // one bucket without overlap, several with it
      if (run.overlap != (run.bucket_coords == 3000)) continue;
      if (v.label == "native") continue;  // floats in the transport's own order
      const Row row = combined(comm, run_rank(comm, run));
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

}  // namespace pride::golden
