// A run within this process: on threads, or as one worker of a coordinator.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <thread>

#include "pride/comm/thread_comm.h"
#include "pride/coordinator.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "program/settings.h"
#include "train/process.h"
#include "train/run_folder.h"

namespace pride::train {
namespace {

// Ends the coordinator's calls after a signal. A handler itself may not lock.
class Watch {
 public:
  explicit Watch(CoordinatorClient& client)
      : thread_([&client](const std::stop_token& over) {
          for (int seen = 0; !over.stop_requested(); std::this_thread::sleep_for(kEvery)) {
            if (interrupted() && ++seen > kPatience) client.interrupt();
          }
        }) {}

 private:
  static constexpr std::chrono::milliseconds kEvery{50};
  static constexpr int kPatience = 6;  // a round that ends within 0.3 s is not lost
  std::jthread thread_;
};

}  // namespace

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
  plan.coordinator = connect();
  const Watch watch(*plan.coordinator);
  const auto alone = make_thread_world(1);
  TrainResult result = train_rank(*alone.front(), plan, observers);
  if (result.interrupted) forget_interrupts();
  return result;
}

}  // namespace pride::train
