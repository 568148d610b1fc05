// Steps of the optimizer with the gradients ready: the methods, and dense steps beside them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/timing.h"

namespace pride::app {

struct OptimizerBench {
  std::vector<std::string> methods = {};  // "lion", or with options "lion:dense=bf16"
  std::size_t bucket_coords = 0;
  int exchange_threads = 4;  // 0: no row with overlap
  double seconds = 1;        // of all rows' measurements together, at least
  int least = 5;             // rounds
};

// For parameters of one tensor: kNoExchange, the methods, the transport's own all-reduce with the
// dense Lion kernel and, on threads, the same in shared memory: each thread averages its part of
// all gradients where they lie. Collective. Throws InvalidArgument on a method that there is not.
std::vector<StepRow> bench_optimizer(Communicator& comm, const OptimizerBench& how,
                                     std::size_t coords);

}  // namespace pride::app
