// Prints the golden table, which scripts/golden.sh writes to tests/golden/table.txt; or, with
// --states, states in the middle of a run.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <exception>

#include "golden/states.h"

int main(int argc, char** argv) {
  using namespace pride::golden;
  try {
    if (argc > 1 && std::strcmp(argv[1], "--states") == 0) {
      for (const Variant& v : state_variants()) write(std::cout, v, save_run(v));
      return 0;
    }
    std::cout << "# Written by scripts/golden.sh. Bytes and messages: sent by all ranks in all "
                 "steps.\n";
    for (const Variant& v : variants()) {
      for (const Case& run : runs_of(v, {1, 2, 3, 4, 8})) {
        std::cout << run.key() << ": " << run_on_threads(run).text() << '\n';
      }
    }
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "golden_table: " << e.what() << '\n';
    return 1;
  }
}
