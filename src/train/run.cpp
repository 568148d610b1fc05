// A run within this process: on threads, or as one worker of a coordinator.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "train/process.h"
#include "train/run_folder.h"
#include "train/settings/settings.h"

namespace pride::train {

TrainResult run(const TrainOptions& options, std::shared_ptr<const Task> task,
                const Observers& observers) {
  pin_threads();
  const int threads = options.workers == 0 ? kDefaultWorkers : options.workers;
  const int world = options.virtual_workers > 0 ? options.virtual_workers : threads;
  TrainPlan plan = make_plan(options, world, std::move(task));
  check_out_folder(options);
  plan.optimizer.nodes = nodes_of_threads(world, options.hierarchical);
  TrainResult result;
  run_world(options.virtual_workers > 0 ? 1 : world, [&](Communicator& comm) {
    TrainResult mine = train_rank(comm, plan, observers);
    if (comm.rank() == 0) result = std::move(mine);
  });
  if (result.interrupted) forget_interrupts();
  return result;
}

TrainResult run_worker(const TrainOptions& options, const Connect& connect,
                       std::shared_ptr<const Task> task, const Observers& observers) {
  PRIDE_CHECK(!options.coordinator.empty(), "train: options.coordinator names no coordinator");
  pin_threads();
  TrainPlan plan = make_plan(options, std::max(options.workers, 1), std::move(task));
  check_out_folder(options);
  plan.optimizer.coordinator = connect();
  const auto alone = make_thread_world(1);
  TrainResult result = train_rank(*alone.front(), plan, observers);
  if (result.interrupted) forget_interrupts();
  return result;
}

}  // namespace pride::train
