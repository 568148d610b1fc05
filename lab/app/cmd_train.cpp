// `pride train`: its workers (threads, or the processes of a job), and the end of a run.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

#include "commands.h"
#include "pride/error.h"
#include "pride/train/observer.h"
#include "pride/train/trainer.h"
#include "program/hex.h"
#include "program/program.h"
#include "program/table.h"
#include "program/world.h"
#include "train/flags.h"
#include "train/progress.h"
#include "train/step_times.h"
#if PRIDE_HAVE_COORD
#include <unistd.h>

#include "pride/coord/client.h"
#endif

namespace pride::app {
namespace {

// A line for each method, if tensors have several.
std::string sections_table(const std::vector<SectionReport>& sections) {
  if (sections.size() < 2) return "";
  std::vector<std::vector<std::string>> rows = {
      {"method", "parameters", "state", "sent per step", "in the last step"}};
  for (const SectionReport& s : sections) {
    rows.push_back({s.method, grouped(static_cast<double>(s.n_coords)),
                    bytes_text(static_cast<double>(s.state)),
                    bytes_text(static_cast<double>(s.mean_cost.bytes())),
                    bytes_text(static_cast<double>(s.bytes_sent))});
  }
  std::string table = "\n" + markdown_table(rows, 1);
  table.pop_back();  // its last line ends like the others
  return table;
}

void print_summary(const TrainPlan& plan, const TrainResult& result) {
  if (plan.options.json) {
    std::cout << summary_json(plan, result) << std::endl;
    return;
  }
  const double steps = static_cast<double>(std::max<std::int64_t>(result.steps_run, 1));
  const double sent = static_cast<double>(std::ranges::max(result.sent)) / steps;
  const Facts speed = {
      {"ms per step", result.step_s() * 1e3},
      {"samples/s", static_cast<double>(plan.samples_per_step()) / result.step_s()}};
  std::cout << plan.options.method << " after step " << result.steps
            << (result.interrupted ? " (interrupted)" : "") << ":" << metric_text(result.metrics)
            << "\nsent per step and worker: " << bytes_text(sent) << metric_text(speed)
            << sections_table(result.sections);
  if (result.steps_skipped > 0) {
    std::cout << "\nsteps skipped for NaN or Inf in a gradient: " << result.steps_skipped;
  }
  std::cout << "\nparam_hash " << hex16(result.param_hash) << std::endl;
}

// Prints the summary of a run when it is over.
class Summary final : public Observer {
 public:
  void on_start(const TrainPlan& plan, const RunStart&) override { plan_ = &plan; }
  void on_end(const TrainResult& result) override { print_summary(*plan_, result); }

 private:
  const TrainPlan* plan_ = nullptr;
};

Observers observers_of(const TrainOptions& options) {
  Observers observers = observers_for(options);
  observers.push_back(std::make_shared<Summary>());
  return observers;
}

Workers workers_of(const TrainOptions& options) {
  const std::chrono::duration<double> timeout(options.timeout_s);
  return {options.workers, std::chrono::ceil<std::chrono::milliseconds>(timeout)};
}

bool train_as_rank(Communicator& comm, TrainOptions options, bool threads_may_talk) {
  check_workers(workers_of(options), comm);
  const bool overlap_off = options.overlap.value_or(true) && !threads_may_talk;
  options.overlap = options.overlap.value_or(true) && threads_may_talk;
  if (comm.rank() == 0) check_out_folder(options);
  const int players = options.virtual_workers;
  PRIDE_CHECK(players == 0 || comm.size() == 1, "--virtual-workers ", players,
              ": one process plays all of them, this job has ", comm.size());
  TrainPlan plan = make_plan(options, std::max(players, comm.size()));
  prepare(comm, plan);
  choose_bucket_size(comm, plan);
  if (overlap_off) {
    plan.notes.push_back("overlap is off: this MPI does not grant MPI_THREAD_MULTIPLE");
  }
  return train_rank(comm, plan, observers_of(options)).interrupted;
}

#if PRIDE_HAVE_COORD
std::string name_of_process() {
  char host[40] = "worker";
  gethostname(host, sizeof(host) - 1);  // cuts longer names
  return concat(host, "-", getpid());
}

// The secret of a worker with its own name is stored beside its results, so that the coordinator
// recognises it after a restart.
CoordinatorAddress address_of(const TrainOptions& o) {
  const std::chrono::duration<double> patience(o.timeout_s);
  CoordinatorAddress address{.host_port = o.coordinator,
                             .certificates = o.certificates,
                             .name = o.worker_name,
                             .secret_file = {},
                             .patience = std::chrono::ceil<std::chrono::milliseconds>(patience),
                             .on_notice = {}};
  const bool named = !o.worker_name.empty() || !o.certificates.empty();
  if (!named) address.name = name_of_process();
  if (named && !o.out.empty()) {
    address.secret_file = o.out.substr(0, o.out.find_last_not_of('/') + 1) + ".secret";
  }
  return address;
}

bool train_with_coordinator(const TrainOptions& options) {
  const Observers observers = observers_of(options);
  CoordinatorAddress address = address_of(options);
  address.on_notice = [&](const std::string& text) {
    for (const auto& observer : observers) observer->on_notice(text);
  };
  const Connect connect = [&] { return connect_coordinator(address); };
  try {
    return run_worker(options, connect, nullptr, observers).interrupted;
  } catch (const CommError& error) {  // before its first step
    if (!interrupted()) throw;
    std::cerr << "pride: " << error.what() << std::endl;
    return true;
  }
}
#else
bool train_with_coordinator(const TrainOptions&) {
  throw InvalidArgument("--coordinator: this build of pride has no gRPC");
}
#endif

bool train_anywhere(const TrainOptions& options) {
  pin_threads();
  catch_interrupts();
  if (!options.coordinator.empty()) return train_with_coordinator(options);
  const std::optional<Job> job = join_job(workers_of(options));
  if (!job) return run(options, nullptr, observers_of(options)).interrupted;
  try {
    return train_as_rank(*job->comm, options, job->threads_may_talk);
  } catch (const std::exception& error) {
    leave_job(*job->comm, error);
  }
}

}  // namespace

void add_train(CLI::App& command) {
  const auto options = std::make_shared<TrainOptions>();
  add_train_flags(command, *options);
  add_transport_flag(command);
  command.callback([&command, options] {
    if (!options->config.empty()) apply_config(command, options->config);
    check(*options);
    if (train_anywhere(*options)) std::exit(kInterrupted);
  });
}

}  // namespace pride::app
