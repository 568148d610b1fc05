// `pride train`: who the workers are (threads, or the processes of a job), and how a run ends.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>

#include "commands.h"
#include "nodes.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "train/bucket_size.h"
#include "train/options.h"
#include "train/plan.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/recorder.h"
#include "train/same_settings.h"
#include "train/worker.h"
#include "world.h"

namespace pride::app {
namespace {

constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells say it

std::string skipped_text(const nlohmann::ordered_json& s) {
  const auto skipped = s.at("steps_skipped").get<std::int64_t>();
  return skipped == 0 ? "" : concat("\nsteps skipped for NaN or Inf in a gradient: ", skipped);
}

void print_summary(const TrainOptions& options, const nlohmann::ordered_json& s) {
  if (options.json) {
    std::cout << s.dump(2) << std::endl;
    return;
  }
  double sent = 0;
  for (const auto& rank : s.at("bytes").at("ranks")) {
    sent = std::max(sent, rank.at("sent_per_step").get<double>());
  }
  const nlohmann::ordered_json speed = {{"ms per step", s.at("step_ms")},
                                        {"samples/s", s.at("samples_per_s")}};
  std::cout << options.method << " after step " << s.at("steps")
            << (s.at("interrupted") ? " (interrupted)" : "") << ":" << metric_text(s.at("final"))
            << "\nsent per step and worker: " << bytes_text(sent) << metric_text(speed)
            << skipped_text(s) << "\nparam_hash " << s.at("param_hash").get<std::string>()
            << std::endl;
}

Workers workers_of(const TrainOptions& options) {
  const std::chrono::duration<double> timeout(options.timeout_s);
  return {options.workers, options.threads_per_process,
          std::chrono::ceil<std::chrono::milliseconds>(timeout)};
}

// True if interrupted.
bool train_with_threads(const TrainOptions& options) {
  const int world = options.workers == 0 ? kDefaultWorkers : options.workers;
  check_out_folder(options);
  TrainPlan plan = make_plan(options, world);
  plan.optimizer.nodes = nodes_of_threads(world, options.hierarchical);
  Recorder recorder(plan);
  bool stopped = false;
  run_world(world, [&](Communicator& comm) {
    const bool mine = train_rank(comm, plan, comm.rank() == 0 ? &recorder : nullptr);
    if (comm.rank() == 0) stopped = mine;
  });
  print_summary(options, recorder.summary());
  return stopped;
}

// What the ranks of a process share: the plan, with its data, is made by the first to come.
struct Process {
  std::once_flag made;
  std::optional<TrainPlan> plan;
};

bool train_as_rank(Communicator& comm, TrainOptions options, bool threads_may_talk,
                   Process& process) {
  const bool root = comm.rank() == 0;
  check_workers(workers_of(options), comm);
  const bool overlap_off = options.overlap.value_or(true) && !threads_may_talk;
  options.overlap = options.overlap.value_or(true) && threads_may_talk;
  std::call_once(process.made, [&] {
    if (comm.rank() < std::max(1, options.threads_per_process)) check_out_folder(options);
    process.plan = make_plan(options, comm.size());
  });
  TrainPlan plan = *process.plan;
  allow_waits(comm, plan.options);
  check_same_settings(comm, plan);
  plan.optimizer.nodes = nodes_of(comm, options.hierarchical);
  choose_bucket_size(comm, plan);
  std::optional<Recorder> recorder;
  if (root) recorder.emplace(plan);
  if (root && overlap_off) {
    recorder->note("overlap is off: this MPI does not grant MPI_THREAD_MULTIPLE");
  }
  const bool stopped = train_rank(comm, plan, root ? &*recorder : nullptr);
  if (root) print_summary(options, recorder->summary());
  return stopped;
}

bool train_with_threads_of_processes(const TrainOptions& options) {
  Process process;
  bool stopped = false;
  run_threads_of_process(workers_of(options), [&](Communicator& comm, bool) {
    const bool mine = train_as_rank(comm, options, true, process);
    if (comm.rank() % options.threads_per_process == 0) stopped = mine;
  });
  return stopped;
}

bool train(const TrainOptions& options) {
  pin_threads();
  catch_interrupts();
  if (options.threads_per_process > 0) return train_with_threads_of_processes(options);
  const std::optional<Job> job = join_job(workers_of(options));
  if (!job) return train_with_threads(options);
  try {
    Process process;
    return train_as_rank(*job->comm, options, job->threads_may_talk, process);
  } catch (const std::exception& error) {
    leave_job(*job->comm, error);
  }
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model with N workers");
  const auto options = std::make_shared<TrainOptions>();
  add_train_flags(*command, *options);
  add_transport_flag(*command);
  command->callback([command, options] {
    if (!options->config.empty()) apply_config(*command, options->config);
    check(*options);
    if (train(*options)) std::exit(kInterrupted);
  });
}

}  // namespace pride::app
