// Prints the golden table, which scripts/golden.sh writes to tests/golden/table.txt.
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <iostream>

#include "golden/runs.h"

int main() {
  using namespace pride::golden;
  try {
    std::cout << "# Written by scripts/golden.sh. Bytes and messages: sent by all ranks in all "
                 "steps.\n";
    for (const Variant& v : variants()) {
      for (const Case& run : runs_of(v, {1, 2, 3, 4, 8})) {
        if (run.overlap) continue;  // the row is that without
        std::cout << run.key() << ": " << run_on_threads(run).text() << '\n';
      }
    }
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "golden_table: " << e.what() << '\n';
    return 1;
  }
}
