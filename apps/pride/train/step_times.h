// What whole training steps take, method beside method, in one run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/steps.h"
#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/train/options.h"
#include "train_names.h"

namespace pride::app {

struct StepBench {
  TrainOptions options = {};  // task, model, batch, buckets; the method is set row by row
  std::vector<std::string> methods = {};  // "lion", or with options "lion:dense=bf16"
  bool threads_may_talk = true;           // else no row with overlap
  double seconds = 5;                     // of all rows' measurements together, at least
  int least = 5;                          // rounds
};

inline constexpr const char* kBackwardOnly = "backward only";  // forward and backward, no step

// The first rows are kBackwardOnly and, if there is any method, kNoExchange. All ranks have the
// same rows. Collective. Throws as a training run would.
std::vector<StepRow> bench_steps(Communicator& comm, const StepBench& how);

// Tensors of the model in `rows`' runs. Local.
Layout model_layout(const TrainOptions& options);

}  // namespace pride::app
