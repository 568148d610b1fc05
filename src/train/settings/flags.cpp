// The table of settings.
// SPDX-License-Identifier: Apache-2.0
#include "pride/train/flags.h"

#include <algorithm>

#include "pride/error.h"
#include "pride/registry.h"
#include "train/settings/flag_lists.h"
#include "train/settings/settings.h"

namespace pride::train {
namespace {

using O = TrainOptions;

constexpr double kLargestSize = 0x1p20;  // of a model, in any direction
constexpr double kMostSeed = 0x1p64;
constexpr double kLongestTimeout = 7 * 24 * 3600;
constexpr const char* kTask = "Task";
constexpr const char* kModel = "Model";
constexpr const char* kImages = "Images";
constexpr const char* kMethod = "Method";
constexpr const char* kSize = "Size of the run";

std::string joined(const std::vector<std::string>& words, const char* between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::vector<Flag> task_flags() {
  return {
      {"task", &O::task, Role::kTask, kTask, ""},
      {"data", &O::data, Role::kData, kTask, "", {.may_differ = true}},
      {"vocab",
       &O::vocab,
       Role::kData,
       kTask,
       "lm: the data are shards of 16-bit tokens (`pride tokenize`, nanoGPT's or llm.c's) of the "
       "vocabulary in this folder: encoder.json and vocab.bpe. A file (its last tenth validates), "
       "or a folder of *.bin with the word train or val in their names. fewshot: the model's",
       {.may_differ = true}},
      {"examples",
       &O::examples,
       Role::kTask,
       kTask,
       "fewshot: questions of each task to train on, chosen by the seed. 0: all of those that are "
       "to train on",
       {.highest = kLargestSize}},
      {"shots",
       &O::shots,
       Role::kTask,
       kTask,
       "fewshot: questions with their answers before each question of an evaluation",
       {.highest = kLargestSize}},
      {"skip-long", &O::skip_long, Role::kTask, kTask,
       "fewshot: leave out questions with a choice that is longer than the context, which are an "
       "error otherwise"},
      {"sharding", &O::sharding, Role::kBatches, kTask,
       "Each worker's samples: partition (its own part of each epoch's shuffle), replicate (all "
       "of them, in its own order) or dirichlet:A (images: parts with skewed labels, the more the "
       "smaller A > 0)"},
      {"vote-weight",
       &O::vote_weight,
       Role::kTraining,
       kTask,
       "A worker's votes: equal (one each), or samples (as many as it has training samples, which "
       "dirichlet deals unequally; in units of N / 65535 of more than 65535 samples). For methods "
       "that exchange signs",
       {.choices = {"equal", "samples"}}},
      {"seed",
       &O::seed,
       Role::kBatches,
       kTask,
       "Of initial values, data order, augmentation, ties and zeros",
       {.highest = kMostSeed, .by_experiment = true}},
  };
}

std::vector<Flag> model_flags() {
  const auto size = [](const char* name, Flag::Member member, const char* help) {
    return Flag{name, member, Role::kTask, kModel, help, {.lowest = 1, .highest = kLargestSize}};
  };
  return {
      {"model", &O::model, Role::kTask, kModel, ""},
      {"init",
       &O::init,
       Role::kData,
       kModel,
       "lm, fewshot: begin with this GPT-2 checkpoint in Hugging Face's layout (a folder with "
       "model.safetensors and config.json, or the file), which settles the model's sizes",
       {.rival = "model", .may_differ = true}},
      {"init-std",
       &O::init_std,
       Role::kTask,
       kModel,
       "Standard deviation of the initial weights (GPT-2's initializer_range); where a branch of a "
       "GPT ends, over sqrt(2 layers). Default: 1/sqrt(3 width) of gpt-small, 0.02 of the others",
       {.above = true}},
      {"embedding-std",
       &O::embedding_std,
       Role::kTask,
       kModel,
       "lm, fewshot: the same of the tokens' embeddings, which are the head too. Default: "
       "1/sqrt(width) of gpt-small, 0.02 of gpt2",
       {.above = true}},
      size("layers", &O::layers, "Transformer blocks, instead of the model's"),
      size("heads", &O::heads, "Attention heads, instead of the model's"),
      size("width", &O::width, "Width of the residual stream, instead of the model's"),
      size("context", &O::context,
           "lm: length of a sample in tokens, instead of the model's; fewshot: most tokens of a "
           "question"),
      size("patch", &O::patch, "Images: side of a patch in pixels, instead of the model's"),
      {"image-size",
       &O::image_size,
       Role::kTask,
       kImages,
       "imagenet: side of the crops that the model sees, in pixels. Default: 224",
       {.lowest = 1, .highest = 4096}},
      {"loader-threads",
       &O::loader_threads,
       Role::kSpeed,
       kImages,
       "imagenet: threads of each worker that read and decode images ahead of the step; never "
       "changes a result. 0: none, the worker does it itself. Default: 2",
       {.highest = 256, .may_differ = true}},
      {"label-smoothing",
       &O::label_smoothing,
       Role::kTraining,
       kImages,
       "Images, in training: this part of each target is spread over all classes",
       {.highest = 1, .below = true}},
      {"mixup", &O::mixup, Role::kTraining, kImages,
       "Images, in training: batches are mixed with their own reverse, in shares from Beta(A, A). "
       "0: none"},
  };
}

std::vector<Flag> method_flags() {
  const auto own = [](const char* name, Flag::Member member, std::string help) {
    return Flag{name, member, Role::kMethod, kMethod, std::move(help)};
  };
  return {
      {"method",
       &O::method,
       Role::kMethod,
       kMethod,
       concat("One of: ", joined(method_names())),
       {.by_experiment = true}},
      own("method-opt", &O::method_options,
          "The method's own option as key=value; may be repeated. `pride methods --method NAME` "
          "lists them"),
      {"budget-bits",
       &O::budget_bits,
       Role::kMethod,
       kMethod,
       "lion-cub-auto: bits sent per parameter, step and rank at most, on average; the same as "
       "--method-opt budget_bits=",
       {.above = true}},
      own("lr", &O::lr, "Peak learning rate. Default: the method's, larger for small models"),
      own("beta1", &O::beta1, "Default: the method's"),
      own("beta2", &O::beta2, "Default: the method's"),
      own("eps", &O::eps, "Default: the method's"),
      own("weight-decay", &O::weight_decay,
          "Decoupled, times the learning rate; biases, norms, embeddings and position tables are "
          "left out. Default: the method's"),
      own("decay-all", &O::decay_all, "Weight decay on every tensor"),
      {"schedule",
       &O::schedule,
       Role::kTraining,
       kMethod,
       "Of the learning rate",
       {.choices = {"constant", "cosine", "linear"}}},
      {"warmup",
       &O::warmup,
       Role::kMethod,
       kMethod,
       "Steps of linear rise of the learning rate",
       {.highest = kMostSteps}},
      {"final-lr-factor", &O::final_lr_factor, Role::kTraining, kMethod,
       "Where cosine and linear end, as a factor of the peak"},
      own("clip-norm", &O::clip_norm,
          "Local clipping: each worker scales its own gradient down to this 2-norm before it "
          "enters the method. 0: none"),
      own("clip-global-norm", &O::clip_global_norm,
          "Scales the mean gradient of all workers down to this 2-norm. Only for methods that have "
          "it: adamw, sgdm, lion. 0: none"),
      {"non-finite",
       &O::non_finite,
       Role::kTraining,
       kMethod,
       "On NaN or Inf in a gradient: raise (stop all workers with an error) or skip (drop the step "
       "on all workers; 20 dropped steps in a row are an error)",
       {.choices = {"raise", "skip"}}},
  };
}

std::vector<Flag> size_flags() {
  return {
      {"workers",
       &O::workers,
       Role::kBatches,
       kSize,
       "Threads, each a worker with a model of its own. Default: 4. Under mpirun every process is "
       "a worker and the flag may be left out",
       {.lowest = 1, .highest = 1024}},
      {"threads-per-process",
       &O::threads_per_process,
       Role::kSpeed,
       kSize,
       "Under mpirun: workers in each process, threads of it. Default: every process is one worker",
       {.lowest = 1, .highest = 1024, .by_experiment = true}},
      {"batch", &O::batch, Role::kBatches, kSize, "", {.lowest = 1, .highest = kMostSteps}},
      {"accumulate",
       &O::accumulate,
       Role::kBatches,
       kSize,
       "Backward passes per step",
       {.lowest = 1, .highest = kLargestSize}},
      {"epochs",
       &O::epochs,
       Role::kBatches,
       kSize,
       "Passes over the training set, fractions allowed; with replicate, of each worker. Default: "
       "1",
       {.above = true}},
      {"steps",
       &O::steps,
       Role::kBatches,
       kSize,
       "Steps, instead of --epochs",
       {.lowest = 1, .highest = kMostSteps, .rival = "epochs"}},
      {"device",
       &O::device,
       Role::kTraining,
       kSize,
       "cpu or cuda (needs a CUDA build of libtorch; the method still runs on the host)",
       {.choices = {"cpu", "cuda"}}},
      {"dtype",
       &O::dtype,
       Role::kTraining,
       kSize,
       "float32, or bfloat16 for the model's weights, activations and gradients; the parameters "
       "that the method steps, and its state, are float32 in any case",
       {.choices = {"float32", "bfloat16"}}},
      {"bucket-mb",
       &O::bucket_mb,
       Role::kTraining,
       kSize,
       "Target size of a bucket, in MiB of float32 gradients; never changes a result. Default: "
       "between processes chosen from the network, which is measured; else 4",
       {.highest = kLargestSize, .above = true}},
      {"bucket-coords",
       &O::bucket_coords,
       Role::kTraining,
       kSize,
       "The same, in coordinates",
       {.lowest = 1, .highest = kMostSteps, .rival = "bucket-mb"}},
      {"overlap", &O::overlap, Role::kSpeed, kSize,
       "Exchange on threads of its own, beside backward and the method's arithmetic. Default: "
       "between processes"},
      {"exchange-threads",
       &O::exchange_threads,
       Role::kSpeed,
       kSize,
       "With --overlap: buckets on their way at a time",
       {.lowest = 1, .highest = 16}},
      {"hierarchical",
       &O::hierarchical,
       Role::kTraining,
       kSize,
       kHierarchicalHelp,
       {.wrong = wrong_hierarchical, .type = "L|auto"}},
      {"timeout",
       &O::timeout_s,
       Role::kSpeed,
       kSize,
       "Longest wait for another worker, in seconds, also at the start; at most a week (604800)",
       {.highest = kLongestTimeout, .above = true}},
  };
}

}  // namespace

const std::vector<Flag>& Flag::table() {
  static const std::vector<Flag> flags = [] {
    std::vector<Flag> all;
    for (auto make :
         {task_flags, model_flags, method_flags, size_flags, coordinator_flags, output_flags}) {
      std::ranges::move(make(), std::back_inserter(all));
    }
    return all;
  }();
  return flags;
}

const Flag* Flag::find(std::string_view name) {
  const auto found = std::ranges::find(table(), name, &Flag::name);
  return found != table().end() ? &*found : nullptr;
}

bool Flag::given(const TrainOptions& options) const {
  static const TrainOptions kDefaults;
  return std::visit([&](auto member) { return options.*member != kDefaults.*member; }, member);
}

Role role_of(std::string_view name) {
  const Flag* flag = Flag::find(name);
  return flag != nullptr ? flag->role : Role::kTraining;
}

}  // namespace pride::train
