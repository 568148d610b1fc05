// What whole training steps take, method beside method, in one run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
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

struct StepRow {
  std::string name;  // kBackwardOnly, kNoExchange or a method
  bool overlap = false;
  std::size_t bucket_coords = 0;  // of a method
  Times times = {};
  // Medians, of the slowest rank each: arithmetic before and after, and what the caller waited for.
  double encode_s = 0, exchange_s = 0, apply_s = 0;
  double samples_per_s = 0;  // of all ranks, at the median
  double bytes = 0;          // sent per step, of the rank with most, in the last round
  // Of a method: ranks whose parameters after its first step, from the same ones in every row, are
  // not those that rank 0 has after that step without overlap.
  std::optional<int> wrong_ranks = {};
};

inline constexpr const char* kBackwardOnly = "backward only";  // forward and backward, no step
inline constexpr const char* kNoExchange = "no exchange";      // each rank a step of Lion, alone

// The first rows are kBackwardOnly and, if there is any method, kNoExchange. All ranks have the
// same rows. Rounds go through the rows in turn, so that what else the machine does hits them
// alike; all ranks begin a step together, and it lasts as long as the slowest's. Collective. Throws
// as a training run would.
std::vector<StepRow> bench_steps(Communicator& comm, const StepBench& how);

// Tensors of the model in `rows`' runs. Local.
Layout model_layout(const TrainOptions& options);

}  // namespace pride::app
