// Times of whole training steps, all methods in one run; and the default size of buckets, from the
// measured network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/train/options.h"
#include "pride/train/plan.h"
#include "program/bench/timing.h"
#include "train_names.h"

namespace pride::app {

struct StepBench {
  TrainOptions options = {};  // task, model, batch, buckets; the method is set row by row
  std::vector<std::string> methods = {};  // "lion", or with options "lion:dense=bf16"
  bool threads_may_talk = true;           // otherwise no row with overlap
  double seconds = 5;                     // minimum of all rows' measurements together
  int least = 5;                          // repetitions
};

inline constexpr const char* kBackwardOnly = "backward only";  // forward and backward, no step

// The first rows are kBackwardOnly and, if there is any method, kNoExchange. All ranks have the
// same rows. Collective. Throws as a training run does.
std::vector<StepRow> bench_steps(Communicator& comm, const StepBench& how);

// Tensors of the model in `rows`' runs. Local.
Layout model_layout(const TrainOptions& options);

// Sets plan.optimizer.bucket_coords from the measured network, and bandwidth_delay_bytes, the
// option of methods that choose the route of a bucket. Adds notes with the reasons. Does nothing if
// a flag sets the size or there is no network (one rank, or threads). Takes about a second.
// Collective.
void choose_bucket_size(Communicator& comm, TrainPlan& plan);

// The number of buckets with the least exposed time: each costs its latencies, and the last one is
// exposed, so sqrt(bytes_s / latency_s). At least 1; at most coords / 1,048,576, so that buckets
// are not too small.
int buckets_for(double bytes_s, double latency_s, double coords);

}  // namespace pride::app
