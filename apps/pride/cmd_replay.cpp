// `pride replay`: command line of the replay of recorded gradients.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "pride/error.h"
#include "program/flag_values.h"
#include "program/hex.h"
#include "program/io/safetensors.h"
#include "program/json.h"
#include "program/program.h"
#include "program/settings.h"
#include "replay/replay.h"

namespace pride::app {
namespace {

struct ReplayArguments {
  std::string input, output;
  std::vector<std::string> method_options;  // "key=value"
  std::string non_finite = "raise";
  bool json = false;
  ReplayOptions replay;
};

void print_json(const ReplayArguments& args, const Recording& recording,
                const ReplayResult& result) {
  const nlohmann::ordered_json report = {
      {"method", args.replay.optimizer.method},
      {"workers", recording.workers},
      {"steps", recording.steps},
      {"skipped_steps", result.skipped_steps},
      {"n_coords", result.n_coords},
      {"bytes_per_step_and_rank", or_null(result.bytes_per_step_and_rank)},
      {"ratio_to_fp32_ring", or_null(result.ratio_to_fp32_ring)},
      {"param_hash", hex16(result.param_hash)}};
  std::cout << report.dump(2) << '\n';
}

void print_text(const ReplayArguments& args, const Recording& recording,
                const ReplayResult& result) {
  std::cout << args.replay.optimizer.method << ": " << recording.steps << " steps of "
            << recording.workers << " workers, " << result.n_coords << " coordinates";
  if (result.skipped_steps != 0) std::cout << ", " << result.skipped_steps << " steps skipped";
  std::cout << '\n';
  if (result.bytes_per_step_and_rank) {
    std::cout << "bytes sent per step and rank: " << *result.bytes_per_step_and_rank;
    if (result.ratio_to_fp32_ring) {
      std::cout << " (" << *result.ratio_to_fp32_ring << " of an fp32 ring all-reduce)";
    }
    std::cout << '\n';
  }
  std::cout << "param_hash: " << hex16(result.param_hash) << "\nwritten: " << args.output << '\n';
}

void run_replay(ReplayArguments& args) {
  OptimizerOptions& optimizer = args.replay.optimizer;
  optimizer.options = parse_method_options(args.method_options);
  optimizer.non_finite =
      args.non_finite == "skip" ? NonFinitePolicy::kSkip : NonFinitePolicy::kRaise;
  std::error_code none;
  PRIDE_CHECK(!std::filesystem::equivalent(args.input, args.output, none), "--output ", args.output,
              " is the input file itself, which it would replace");
  const Recording recording = make_recording(args.input, read_safetensors(args.input));
  const ReplayResult result = replay(recording, args.replay);
  if (recording.steps > 0 && result.skipped_steps == recording.steps) {
    throw NonFiniteGradient(concat(args.input, ": all ", recording.steps,
                                   " steps were skipped for NaN or Inf in a gradient; nothing is "
                                   "written"));
  }
  write_safetensors(args.output, result.params,
                    {{"producer", "pride replay"},
                     {"method", optimizer.method},
                     {"workers", std::to_string(recording.workers)},
                     {"param_hash", hex16(result.param_hash)}});
  args.json ? print_json(args, recording, result) : print_text(args, recording, result);
}

}  // namespace

void add_replay(CLI::App& command) {
  ReplayArguments& args = arguments_of(command, run_replay);
  command
      .add_option("--input", args.input,
                  "safetensors file: param.<name> F32 (shape), grad.<name> F32 "
                  "[steps, workers, shape]")
      ->type_name("FILE")
      ->required();
  command
      .add_option("--output", args.output,
                  "safetensors file to write: param.<name> F32 [steps, shape], the parameters "
                  "after each step")
      ->type_name("FILE")
      ->required();
  command.add_flag("--json", args.json, "Print the summary as JSON");
  OptimizerOptions& optimizer = args.replay.optimizer;
  ParamGroup& group = optimizer.groups.front();
  command.add_option("--method", optimizer.method, "Method; `pride methods` lists them")
      ->required();
  add_value(command, "--lr", group.lr, "Learning rate (default: the method's)");
  add_value(command, "--beta1", group.beta1, "First beta (default: the method's)");
  add_value(command, "--beta2", group.beta2, "Second beta (default: the method's)");
  add_value(command, "--eps", group.eps, "AdamW's epsilon (default: the method's)");
  add_value(command, "--momentum", group.momentum,
            "Momentum of Muon's matrices (default: the method's), or in place of betas");
  add_value(command, "--weight-decay", group.weight_decay,
            "Decoupled weight decay of every tensor (default: the method's)");
  command
      .add_option("--no-decay", args.replay.no_decay,
                  "Glob of tensor names without weight decay; may be repeated")
      ->allow_extra_args(false)
      ->type_name("PATTERN");
  command
      .add_option("--method-opt", args.method_options,
                  "An option of the method, e.g. tie=zero; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  add_value(command, "--seed", optimizer.seed, "Seed of the bits for zeros, ties and rounding");
  add_value(command, "--bucket-coords", optimizer.bucket_coords,
            "Target size of a bucket in coordinates; never changes a bit of the result", {1});
  add_value(command, "--non-finite", args.non_finite,
            "A gradient with NaN or Inf: raise an error, or skip the step on all workers")
      ->check(CLI::IsMember({"raise", "skip"}));
}

}  // namespace pride::app
