// Settings of a coordinator's worker, and of results.
// SPDX-License-Identifier: Apache-2.0
#include "train/settings/flag_lists.h"

namespace pride::train {
namespace {

using O = TrainOptions;

constexpr const char* kCoordinator = "Coordinator";
constexpr const char* kOutput = "Output";

}  // namespace

std::vector<Flag> coordinator_flags() {
  const auto own = [](const char* name, Flag::Member member, const char* help) {
    return Flag{
        name,         member, Role::kRecords,
        kCoordinator, help,   {.needs = "coordinator", .may_differ = true, .by_experiment = true}};
  };
  const auto part = [](const char* name, Flag::Member member, double lowest, const char* needs,
                       const char* help) {
    return Flag{name,
                member,
                Role::kBatches,
                kCoordinator,
                help,
                {.lowest = lowest, .highest = 65535, .needs = needs, .by_experiment = true}};
  };
  return {
      {"coordinator",
       &O::coordinator,
       Role::kTraining,
       kCoordinator,
       "Train as one worker of the run of `pride serve` at this HOST:PORT, with workers that come "
       "and go; steps are those of the run. For methods that vote",
       {.may_differ = true, .by_experiment = true}},
      own("certificates", &O::certificates,
          "Folder of `pride certs worker`; without it the coordinator must be on this machine"),
      own("worker-name", &O::worker_name,
          "Of this worker in the run. Default: its certificate's; else of host and process"),
      part("shards", &O::shards, 1, "coordinator",
           "Parts that --sharding deals the data to. Default: none, each worker draws from all of "
           "its data, in an order of its own"),
      part("shard", &O::shard, 0, "shards",
           "This worker's part, from 0. Default: its number in the run, modulo --shards"),
  };
}

std::vector<Flag> output_flags() {
  const auto steps = [](const char* name, Flag::Member member, Role role, const char* help,
                        double lowest = 0) {
    return Flag{name, member, role, kOutput, help, {.lowest = lowest, .highest = kMostSteps}};
  };
  std::vector<Flag> flags = {
      {"out",
       &O::out,
       Role::kOutput,
       kOutput,
       "Folder for metrics.jsonl, summary.json, model.safetensors and checkpoints",
       {.by_experiment = true}},
      {"overwrite",
       &O::overwrite,
       Role::kOutput,
       kOutput,
       "Replace the results of an earlier run in --out",
       {.by_experiment = true}},
      steps("eval-every", &O::eval_every, Role::kRecords,
            "Evaluate each so many steps. 0: at the end only"),
      steps("eval-batches", &O::eval_batches, Role::kBatches,
            "Batches of an evaluation (16 texts, 8 questions or 250 images each), spread evenly "
            "over the validation or test set. 0: all of it. Default: 64 for lm, else 0"),
      {"save-every",
       &O::save_every,
       Role::kRecords,
       kOutput,
       "Checkpoint into --out each so many steps, and when interrupted. 0: never",
       {.highest = kMostSteps, .needs = "out", .by_experiment = true}},
      {"keep-checkpoints",
       &O::keep_checkpoints,
       Role::kRecords,
       kOutput,
       "With --save-every: newest checkpoints to keep, beside the one of the lowest evaluation "
       "loss. "
       "0: all",
       {.highest = kMostSteps, .by_experiment = true}},
      {"resume",
       &O::resume,
       Role::kRecords,
       kOutput,
       "Go on from a checkpoint folder, or from the last checkpoint in an --out folder",
       {.by_experiment = true}},
      {"resume-local",
       &O::resume_local,
       Role::kRecords,
       kOutput,
       "With --resume, on any number of workers: what becomes of state that each worker has of its "
       "own. keep: worker r goes on with that of worker r (modulo their number then), average: all "
       "with the mean, reset: all with zeros",
       {.choices = {"keep", "average", "reset"}, .needs = "resume"}},
      {"tensorboard",
       &O::tensorboard,
       Role::kOutput,
       kOutput,
       "Folder for an event file of TensorBoard, beside whatever --out says",
       {.by_experiment = true}},
      steps("log-every", &O::log_every, Role::kOutput,
            "Steps between progress lines when not on a terminal", 1),
      {"quiet",
       &O::quiet,
       Role::kOutput,
       kOutput,
       "No progress on standard error",
       {.by_experiment = true}},
      {"json",
       &O::json,
       Role::kOutput,
       kOutput,
       "The summary as JSON on standard output",
       {.by_experiment = true}},
      {"config",
       &O::config,
       Role::kOutput,
       kOutput,
       "TOML file whose keys are the names of these flags; the command line wins",
       {.by_experiment = true}},
  };
  return flags;
}

}  // namespace pride::train
