// The program pride-lab, which `pride` starts.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "pride/train/flags.h"
#include "program/blas.h"
#include "program/plan/plan.h"
#include "program/program.h"
#if PRIDE_HAVE_TORCH
#include "pride/train/model.h"
#include "pride/train/task.h"
#include "train/plan_model.h"
#endif
#if PRIDE_HAVE_C10D
#include "pride/comm/c10d_env.h"
#include "pride/comm/network.h"
#endif

namespace pride::app {
namespace {

#if PRIDE_HAVE_TORCH
#define PRIDE_TORCH_HAS(add) add
std::shared_ptr<PlanModel> model_of_plan() { return std::make_shared<TrainedModel>(); }
constexpr const char* kExampleOfPlan = "--task lm --bandwidth 1Gbit --latency 50us --world 4";
#else
#define PRIDE_TORCH_HAS(add) add_missing
// A command that always fails, because its library is missing.
void add_missing(CLI::App& command) {
  command.description(command.get_description() + " (not in this build: it has no libtorch)");
  command.allow_extras();
  command.callback([&command] {
    throw Error(concat("this build of pride-lab has no libtorch, which `pride ", command.get_name(),
                       "` needs: install it (Debian: libtorch-dev) and configure with "
                       "-DPRIDE_WITH_TORCH=ON"));
  });
}
std::shared_ptr<PlanModel> model_of_plan() { return nullptr; }
constexpr const char* kExampleOfPlan =
    "--params 10M --backward 120ms --bandwidth 1Gbit "
    "--latency 50us --world 4";
#endif

const std::vector<Command> kCommands = {
    {"train",
     "Train a model with N workers",
     {"--task lm --method dlion-vote --workers 4 --lr 1e-3 --steps 300 --out runs/vote",
      "--task cifar10 --data data --method lion-cub --epochs 1 --out runs/cub"},
     PRIDE_TORCH_HAS(add_train)},
    {"compare",
     "Train by several methods and compare them on the same task. Runs of one seed have the same "
     "initial values and batches. Each run is a `pride train` with threads as workers. Flags of "
     "`pride train` apply to all methods. If interrupted, repeat the command to continue.",
     {"--task lm --methods lion,dlion-vote --seeds 1,2,3 --steps 300 --out runs/lm",
      "--task cifar10 --data data --methods all --tune --epochs 1"},
     PRIDE_TORCH_HAS(add_compare)},
    {"sweep",
     "Run an experiment file: methods x workers x seeds x anything else it varies. Each run is a "
     "`pride train` with threads as workers. If interrupted, repeat the command: it runs only what "
     "is missing or changed.",
     {"lab/experiments/demo.toml --list", "lab/experiments/demo.toml --jobs 2"},
     PRIDE_TORCH_HAS(add_sweep)},
    {"tokenize",
     "Turn text into shards of GPT-2 tokens",
     {"books/ --vocab gpt2 --out shards", "--check shards --vocab gpt2"},
     add_tokenize},
    {"generate",
     "Generate text with a trained language model",
     {"--model runs/vote --prompt \"To be\" --temperature 0.8"},
     PRIDE_TORCH_HAS(add_generate)},
    {"evaluate",
     "Score a language model on multiple-choice questions",
     {"--model runs/gpt2 --vocab gpt2 --tasks questions/ --shots 3"},
     PRIDE_TORCH_HAS(add_evaluate)},
    {"report",
     "Show runs as one self-contained HTML page: charts, tables and settings",
     {"runs/lm --out report.html", "runs/lm --svg loss.svg --chart loss"},
     add_report},
    {"bench", "Measure steps, images, and the network of torchrun's ranks", {}, add_bench},
    {"plan",
     "Predict step times by method and network: does compression pay?",
     {kExampleOfPlan},
     [](CLI::App& command) { add_plan(command, model_of_plan()); }},
    {"facts", "Print what this program can use on this machine, as JSON", {}, add_facts},
};

// Values of flags of the table of settings.
std::map<std::string, std::vector<std::string>> values() {
  std::map<std::string, std::vector<std::string>> all;
  for (const Flag& flag : Flag::table()) {
    if (!flag.rules.choices.empty()) all[flag.name] = flag.rules.choices;
  }
  all["method"] = method_names();
#if PRIDE_HAVE_TORCH
  for (const TaskInfo& task : tasks()) all["task"].push_back(task.name);
  for (const ModelInfo& model : models()) all["model"].push_back(model.name);
#endif
  return all;
}

#if PRIDE_HAVE_C10D
Job join_torchrun(const Workers& workers) {
  Job job{nullptr, make_c10d_communicator_from_env(workers.timeout), true};
  job.comm->set_timeout(workers.timeout);
  const NetworkReport report = network_report(*job.comm, c10d_interface());
  if (job.comm->rank() != 0 || report.line.empty()) return job;
  std::cerr << "pride: " << report.line << '\n';
  for (const std::string& warning : report.warnings) {
    std::cerr << "pride: warning: " << warning << "; GLOO_SOCKET_IFNAME names another interface\n";
  }
  return job;
}
#else
constexpr Job (*join_torchrun)(const Workers&) = nullptr;
#endif

}  // namespace
}  // namespace pride::app

int pride_main(int argc, char** argv) {
  using namespace pride::app;
  static const pride::Program program{
      .commands = kCommands,
      .values = values,
      .join_torchrun = join_torchrun,
      .is_elsewhere = [](const std::string& path) {  // `pride` has them, too
        return path == "bench" || path == "bench network" || path == "manual" ||
               path == "completion";
      }};
  return run_program(program, argc, argv);
}

int main(int argc, char** argv) {
  pride::use_kernels_of_this_cpu(argv);
  return pride_main(argc, argv);
}
