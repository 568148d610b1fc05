// `pride bench` of the lab: steps of a model, images, and the network of torchrun's jobs.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>

#include "bench/loader.h"
#include "commands.h"
#include "pride/error.h"
#include "program/bench/kinds.h"
#include "program/program.h"
#include "program/table.h"
#include "train/vision/image_folder.h"
#if PRIDE_HAVE_TORCH
#include "pride/train/trainer.h"
#include "train/flags.h"
#include "train/step_times.h"
#endif

namespace pride::app {
namespace {

#if PRIDE_HAVE_TORCH
struct StepArguments : BenchArguments {
  StepBench how = {.methods = {"lion", "lion:dense=native", "lion:dense=bf16", "dlion-vote",
                               "dlion-avg", "lion-cub"},
                   .seconds = 1};
};

void run_step(const StepArguments& args) {
  pin_threads();
  on_ranks(args, [&](Communicator& comm, RowPrinter& print, bool threads_may_talk) {
    StepBench how = args.how;
    how.threads_may_talk = threads_may_talk;
    const auto rows = bench_steps(comm, how);
    print.note(concat(comm.size(), " ranks (", comm.transport(), ")"));
    for (const StepRow& row : rows) {
      print.row(kind_field("step") +
                step_fields(comm, row, "backward", rows.front().times.median_s) +
                Fields{{"samples_per_s", row.samples_per_s, "samples/s", 12,
                        decimals(row.samples_per_s, 1)}});
    }
  });
}

void add_step(CLI::App& bench) {
  const auto args = std::make_shared<StepArguments>();
  CLI::App* kind = add_ranked(
      bench, "step", "Training steps of a model with each method, with and without overlap", args,
      run_step, "Minimum repetitions");
  add_workload_flags(*kind, args->how.options);
  add_value(*kind, "--methods", args->how.methods, kMethodsHelp)->delimiter(',');
  add_value(*kind, "--exchange-threads", args->how.options.exchange_threads,
            "With overlap: buckets in flight", {1, 16});
}
#endif

struct LoaderArguments : BenchArguments {
  std::string data = {};
  std::size_t images = 1000;
  int image_size = 224;
  std::vector<int> threads = {1};
  bool check = false;
};

void run_loader(const LoaderArguments& args) {
  const ImageFolder folder = scan_images(find_image_folder(args.data));
  if (!args.check) {
    RowPrinter print(args.json);
    for (const int threads : args.threads) {
      print.row(fields_of(bench_loader(folder, args.images, args.image_size, threads)));
    }
    return;
  }
  const std::vector<std::string> errors = check_images(folder, args.threads.back());
  for (const std::string& error : errors) std::cout << error << "\n";
  const std::size_t n = folder.train.size() + folder.val.size();
  if (!errors.empty()) {
    throw DataError(concat(errors.size(), " of ", n, " images cannot be read"));
  }
  std::cout << "all " << n << " images can be read" << std::endl;
}

void add_loader(CLI::App& bench) {
  const auto args = std::make_shared<LoaderArguments>();
  CLI::App* kind = add_kind(
      bench, "loader", "Images of the task imagenet, decoded and cropped as in training; no ranks",
      args, run_loader);
  kind->add_option("--data", args->data,
                   "Folder with train/CLASS/*.jpg and val/CLASS/*.jpg; default: $PRIDE_DATA");
  add_value(*kind, "--images", args->images,
            "Number of images, spread evenly over the training set", {1});
  add_value(*kind, "--image-size", args->image_size, "Side of the crops in pixels", {1, 4096});
  add_value(*kind, "--threads", args->threads, "Numbers of threads, separated by commas", {1, 256});
  kind->add_flag("--check", args->check,
                 "Instead decode every image of both splits and list those that cannot be decoded");
}

}  // namespace

void add_bench(CLI::App& command) {
  command.require_subcommand(1);
  add_network_bench(command);
#if PRIDE_HAVE_TORCH
  add_step(command);
#endif
  add_loader(command);
}

}  // namespace pride::app
