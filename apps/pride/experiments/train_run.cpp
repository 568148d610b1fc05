// SPDX-License-Identifier: Apache-2.0
#include "experiments/train_run.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "train/facts_json.h"
#include "train/flags.h"
#include "train_names.h"

namespace pride::app {
std::vector<std::string> arguments_of(const FlagValues& flags) {
  std::vector<std::string> arguments;
  for (const auto& [name, values] : flags) {
    for (const std::string& value : values) arguments.push_back(concat("--", name, "=", value));
  }
  return arguments;
}

TrainOptions parse_train(const std::vector<std::string>& arguments) {
  TrainOptions options;
  CLI::App app("", "pride train");
  add_train_flags(app, options);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(error.what());
  }
  check(options);
  if (options.batch == 0) options.batch = task_info(options.task).default_batch;
  return options;
}

nlohmann::json settings_json(const TrainOptions& options) {
  return nlohmann::json::parse(to_json(options).dump());
}

TrainPlan dry_run(const TrainOptions& options, std::shared_ptr<const Task> task) {
  TrainPlan plan = make_plan(options, options.workers, std::move(task));
  OptimizerOptions alike = plan.optimizer;
  alike.overlap = false;  // no thread is needed to say no
  const auto alone = make_thread_world(1);
  const Optimizer optimizer(*alone.front(),
                            layout_of(*plan.task->model().make(), options.decay_all), alike);
  const Sampler sampler(plan.task->n_samples(), plan.task->labels(),
                        {.sharding = plan.sharding, .seed = options.seed, .world = plan.world});
  return plan;
}

}  // namespace pride::app
