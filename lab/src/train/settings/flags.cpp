// The table of settings.
// SPDX-License-Identifier: Apache-2.0
#include "pride/train/flags.h"

#include <algorithm>

#include "pride/error.h"
#include "pride/registry.h"
#include "program/settings.h"
#include "train/settings/groups.h"
#include "train/settings/varying.h"

namespace pride::train {
namespace {

using O = TrainOptions;

constexpr double kMostSteps = 0x1p40;
constexpr double kLargestSize = 0x1p20;  // of a model, in any direction
constexpr double kMostSeed = 0x1p64;
constexpr double kLongestTimeout = 7 * 24 * 3600;
constexpr const char* kTask = "Task";
constexpr const char* kModel = "Model";
constexpr const char* kImages = "Images";
constexpr const char* kMethod = "Method";
constexpr const char* kSize = "Size of the run";
constexpr const char* kCoordinator = "Coordinator";
constexpr const char* kOutput = "Output";

std::string joined(const std::vector<std::string>& words, const char* between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Makes the rows of a group of the help.
struct Group {
  const char* name;
  Flag operator()(const char* flag, Flag::Member member, Role role, std::string help,
                  Flag::Rules rules = {}) const {
    return {flag, member, role, name, std::move(help), std::move(rules)};
  }
};

std::vector<Flag> task_flags() {
  const Group task{kTask};
  return {
      task("task", &O::task, Role::kTask, ""),
      task("data", &O::data, Role::kData, "", {.may_differ = true}),
      task("vocab", &O::vocab, Role::kData,
           "Folder with a vocabulary: encoder.json and vocab.bpe. lm: --data are then shards of "
           "its 16-bit tokens (from `pride tokenize`, nanoGPT or llm.c): one file, whose last "
           "tenth is for validation, or a folder of *.bin with train or val in their names. "
           "fewshot: the model's vocabulary",
           {.may_differ = true}),
      task("examples", &O::examples, Role::kTask,
           "fewshot: training questions per task, chosen by the seed. 0: all training questions",
           {.highest = kLargestSize}),
      task("shots", &O::shots, Role::kTask,
           "fewshot: examples with answers before each evaluated question",
           {.highest = kLargestSize}),
      task("skip-long", &O::skip_long, Role::kTask,
           "fewshot: leave out questions with a choice longer than the context, instead of an "
           "error"),
      task("sharding", &O::sharding, Role::kBatches,
           "Each worker's samples: partition (its part of each epoch's shuffle), replicate (all "
           "samples, in its own order) or dirichlet:A (images: parts with skewed labels; a smaller "
           "A > 0 skews more)"),
      task("vote-weight", &O::vote_weight, Role::kTraining,
           "A worker's votes: equal (one each), or samples (its number of training samples, "
           "unequal with dirichlet; above 65535 in units of N / 65535). For methods that exchange "
           "signs, with --coordinator also means",
           {.choices = {"equal", "samples"}}),
      task("participation", &O::participation, Role::kTraining,
           "Simulates workers that join and leave: the seed draws this share of the workers in "
           "each round (the steps up to an exchange). The others compute nothing and do not vote. "
           "In a mean they count as 0, and error feedback still sends its error. Bytes are "
           "counted as if all did. Not with --coordinator",
           {.highest = 1, .above = true}),
      task("absent", &O::absent, Role::kTraining,
           "What a worker does with the result of a round it skipped: replay (apply it), or stale "
           "(miss it for good, to measure the cost: parameters differ, and an evaluation is the "
           "mean over the workers)",
           {.choices = {"replay", "stale"}}),
      task("seed", &O::seed, Role::kBatches,
           "Seed of initial values, data order, augmentation, ties and zeros",
           {.highest = kMostSeed, .by_experiment = true}),
  };
}

std::vector<Flag> model_flags() {
  const Group model{kModel}, images{kImages};
  const auto size = [&](const char* name, Flag::Member member, const char* help) {
    return model(name, member, Role::kTask, help, {.lowest = 1, .highest = kLargestSize});
  };
  return {
      model("model", &O::model, Role::kTask, ""),
      model("init", &O::init, Role::kData,
            "lm, fewshot: start from this GPT-2 checkpoint in Hugging Face's layout (a folder with "
            "model.safetensors and config.json, or the file). It determines the model's sizes",
            {.rival = "model", .may_differ = true}),
      model("init-std", &O::init_std, Role::kTask,
            "Standard deviation of the initial weights (GPT-2's initializer_range), divided by "
            "sqrt(2 layers) in the last layer of a GPT's branch. Default: 1/sqrt(3 width) for "
            "gpt-small, 0.02 for the others",
            {.above = true}),
      model("embedding-std", &O::embedding_std, Role::kTask,
            "lm, fewshot: the same for the token embeddings, which are also the head. Default: "
            "1/sqrt(width) for gpt-small, 0.02 for gpt2",
            {.above = true}),
      size("layers", &O::layers, "Transformer blocks, instead of the model's"),
      size("heads", &O::heads, "Attention heads, instead of the model's"),
      size("width", &O::width, "Width of the residual stream, instead of the model's"),
      size("context", &O::context,
           "lm: tokens of a sample, instead of the model's; fewshot: maximum tokens of a question"),
      size("patch", &O::patch, "Images: side of a patch in pixels, instead of the model's"),
      images("image-size", &O::image_size, Role::kTask,
             "imagenet: side of the crops that the model sees, in pixels. Default: 224",
             {.lowest = 1, .highest = 4096}),
      images("loader-threads", &O::loader_threads, Role::kSpeed,
             "imagenet: threads per worker that read and decode images ahead of the step; never "
             "changes a result. 0: the worker does it itself. Default: 2",
             {.highest = 256, .may_differ = true}),
      images("label-smoothing", &O::label_smoothing, Role::kTraining,
             "Images, in training: share of each target that is spread over all classes",
             {.highest = 1, .below = true}),
      images("mixup", &O::mixup, Role::kTraining,
             "Images, in training: A of Beta(A, A); each batch is mixed with its reverse in shares "
             "from it. 0: none"),
  };
}

std::vector<Flag> method_flags() {
  const Group method{kMethod};
  const auto own = [&](const char* name, Flag::Member member, std::string help) {
    return method(name, member, Role::kMethod, std::move(help));
  };
  return {
      method("method", &O::method, Role::kMethod, concat("One of: ", joined(method_names())),
             {.by_experiment = true}),
      own("method-opt", &O::method_options,
          "An option of the method, as key=value; may be repeated. `pride methods --method NAME` "
          "lists them"),
      method("groups", &O::groups, Role::kMethod,
             "Tensors with another method: 'WORDS: METHOD [KEY=VALUE]...', several separated by "
             "';', as in 'embeddings,vectors: adamw lr=3e-3'. WORDS are patterns of names, or "
             "vectors (norms and biases), embeddings, first, last. A KEY is lr, beta1, beta2, eps, "
             "momentum, weight-decay or an option of METHOD; defaults are METHOD's. --schedule "
             "scales all "
             "rates. Not with --coordinator",
             {.wrong = wrong<parse_groups>}),
      own("lr", &O::lr, "Peak learning rate. Default: the method's, larger for small models"),
      own("beta1", &O::beta1, "Default: the method's"),
      own("beta2", &O::beta2, "Default: the method's"),
      own("eps", &O::eps, "Default: the method's"),
      own("momentum", &O::momentum,
          "Of Muon's matrices; default: the method's. In place of betas: of methods with one beta, "
          "and mu for (mu^2, mu) of dlion-muon's kind"),
      own("weight-decay", &O::weight_decay,
          "Decoupled, times the learning rate; not for biases, norms, embeddings and position "
          "tables. Default: the method's"),
      own("decay-all", &O::decay_all, "Weight decay on every tensor"),
      method("schedule", &O::schedule, Role::kTraining, "Schedule of the learning rate",
             {.choices = {"constant", "cosine", "linear"}}),
      method("warmup", &O::warmup, Role::kMethod, "Steps in which the learning rate rises linearly",
             {.highest = kMostSteps}),
      method("final-lr-factor", &O::final_lr_factor, Role::kTraining,
             "Final learning rate of cosine and linear, as a factor of the peak"),
      method("vary", &O::vary, Role::kMethod,
             "Values that change over the run: 'NAME=VALUE@STEP,VALUE@STEP,... [cosine]', several "
             "separated by ';', as in 'momentum=0.85@0,0.97@300,0.9@100%; "
             "weight-decay=0.2@0,0@100% cosine'. NAME is beta1, beta2, momentum or weight-decay. "
             "STEP is a step or a share of the run. Between two points a value moves in a line, or "
             "in half a cosine. For the tensors of --method; weight-decay for those that decay",
             {.wrong = wrong<parse_varying>}),
      own("clip-norm", &O::clip_norm,
          "Local clipping: each worker scales its own gradient down to this 2-norm before it "
          "enters the method. 0: none"),
      own("clip-global-norm", &O::clip_global_norm,
          "Scales the mean gradient of all workers down to this 2-norm. Only for methods that have "
          "it: adamw, sgdm, lion, muon. 0: none"),
      method("non-finite", &O::non_finite, Role::kTraining,
             "On NaN or Inf in a gradient: raise (stop all workers with an error) or skip (drop "
             "the step on all workers; 20 dropped steps in a row are an error)",
             {.choices = {"raise", "skip"}}),
  };
}

std::vector<Flag> size_flags() {
  const Group run{kSize};
  return {
      run("workers", &O::workers, Role::kBatches,
          "Worker threads, each with its own model. Default: 4. Under mpirun every process is a "
          "worker and the flag may be left out",
          {.lowest = 1, .highest = 1024}),
      run("virtual-workers", &O::virtual_workers, Role::kSpeed,
          "N workers that this process runs in turn over one copy of the model: the results and "
          "counted bytes of --workers N, with the memory of one and N times the time",
          {.lowest = 1, .highest = 1024, .rival = "workers"}),
      run("batch", &O::batch, Role::kBatches, "", {.lowest = 1, .highest = kMostSteps}),
      run("accumulate", &O::accumulate, Role::kBatches, "Backward passes per step",
          {.lowest = 1, .highest = kLargestSize}),
      run("epochs", &O::epochs, Role::kBatches,
          "Passes over the training set, fractions allowed; with replicate, passes of each worker. "
          "Default: 1",
          {.above = true}),
      run("steps", &O::steps, Role::kBatches, "Steps, instead of --epochs",
          {.lowest = 1, .highest = kMostSteps, .rival = "epochs"}),
      run("device", &O::device, Role::kTraining,
          "cpu or cuda (needs a CUDA build of libtorch). Ranks are assigned to a machine's GPUs in "
          "turn",
          {.choices = {"cpu", "cuda"}}),
      run("run-on", &O::run_on, Role::kTraining,
          "With --device cuda, where the method runs: auto (on the GPU if it can, otherwise on the "
          "host; the log says why), host (gradients are copied there) or device (an error if it "
          "cannot). Same bits, except for products of matrices",
          {.choices = {"auto", "host", "device"}}),
      run("dtype", &O::dtype, Role::kTraining,
          "float32, or bfloat16 for the model's weights, activations and gradients. The method's "
          "parameters and state are always float32",
          {.choices = {"float32", "bfloat16"}}),
      run("bucket-mb", &O::bucket_mb, Role::kTraining,
          "Target size of a bucket, in MiB of float32 gradients; never changes a result. Default: "
          "between processes chosen by measuring the network, otherwise 4",
          {.highest = kLargestSize, .above = true}),
      run("bucket-coords", &O::bucket_coords, Role::kTraining, "The same, in coordinates",
          {.lowest = 1, .highest = kMostSteps, .rival = "bucket-mb"}),
      run("overlap", &O::overlap, Role::kSpeed,
          "Exchange on separate threads, in parallel with backward (with --device cuda only if the "
          "method runs on the GPU) and the method's arithmetic. Default: on between processes"),
      run("exchange-threads", &O::exchange_threads, Role::kSpeed,
          "With --overlap: buckets in flight", {.lowest = 1, .highest = 16}),
      run("hierarchical", &O::hierarchical, Role::kTraining, kHierarchicalHelp,
          {.wrong = wrong_hierarchical, .type = "L|auto"}),
      run("timeout", &O::timeout_s, Role::kSpeed,
          "Maximum wait for another worker in seconds, also at the start; at most a week (604800)",
          {.highest = kLongestTimeout, .above = true}),
  };
}

std::vector<Flag> coordinator_flags() {
  const Group group{kCoordinator};
  const auto own = [&](const char* name, Flag::Member member, const char* help) {
    return group(name, member, Role::kRecords, help,
                 {.needs = "coordinator", .may_differ = true, .by_experiment = true});
  };
  const auto part = [&](const char* name, Flag::Member member, double lowest, const char* needs,
                        const char* help) {
    return group(name, member, Role::kBatches, help,
                 {.lowest = lowest, .highest = 65535, .needs = needs, .by_experiment = true});
  };
  return {
      group("coordinator", &O::coordinator, Role::kTraining,
            "Train as one worker of the run of `pride serve` at this HOST:PORT, whose workers join "
            "and leave. Steps are the run's. For methods that vote or average",
            {.may_differ = true, .by_experiment = true}),
      own("certificates", &O::certificates,
          "Folder of `pride certs worker`; without it the coordinator must be on this machine"),
      own("worker-name", &O::worker_name,
          "This worker's name in the run. Default: its certificate's; without one from host and "
          "process"),
      part("shards", &O::shards, 1, "coordinator",
           "Number of parts into which --sharding divides the data. Default: none, each worker "
           "draws from all of its data in its own order"),
      part("shard", &O::shard, 0, "shards",
           "This worker's part, from 0. Default: its number in the run, modulo --shards"),
      group("personal", &O::personal, Role::kTraining,
            "Tensors that stay with this worker and are never sent, as patterns of their names: "
            "'head.*,*.norm.*'; or vectors (norms and biases), embeddings, first, last. Each "
            "worker steps them by the method or its local rule. Must be the same on all workers",
            {.needs = "coordinator", .by_experiment = true}),
  };
}

std::vector<Flag> output_flags() {
  const Group output{kOutput};
  const auto steps = [&](const char* name, Flag::Member member, Role role, const char* help,
                         double lowest = 0) {
    return output(name, member, role, help, {.lowest = lowest, .highest = kMostSteps});
  };
  return {
      output("out", &O::out, Role::kOutput,
             "Folder for metrics.jsonl, summary.json, model.safetensors and checkpoints",
             {.by_experiment = true}),
      output("overwrite", &O::overwrite, Role::kOutput,
             "Replace the results of an earlier run in --out", {.by_experiment = true}),
      steps("eval-every", &O::eval_every, Role::kRecords,
            "Steps between evaluations. 0: only at the end"),
      steps("eval-batches", &O::eval_batches, Role::kBatches,
            "Batches of an evaluation (16 texts, 8 questions or 250 images each), spread evenly "
            "over the validation or test set. 0: the whole set. Default: 64 for lm, 0 for others"),
      output("save-every", &O::save_every, Role::kRecords,
             "Steps between checkpoints in --out; also one when interrupted. 0: never",
             {.highest = kMostSteps, .needs = "out", .by_experiment = true}),
      output("keep-checkpoints", &O::keep_checkpoints, Role::kRecords,
             "With --save-every: newest checkpoints to keep, and the one with the lowest "
             "evaluation loss. 0: all",
             {.highest = kMostSteps, .by_experiment = true}),
      output("resume", &O::resume, Role::kRecords,
             "Continue from a checkpoint folder, or from the last checkpoint in an --out folder",
             {.by_experiment = true}),
      output("resume-local", &O::resume_local, Role::kRecords,
             "With --resume, on any number of workers: each worker's own state. keep: worker r "
             "gets that of saved worker r (modulo their number); average: all get the mean; reset: "
             "all get zeros",
             {.choices = {"keep", "average", "reset"}, .needs = "resume"}),
      output("tensorboard", &O::tensorboard, Role::kOutput,
             "Folder for a TensorBoard event file, in addition to --out", {.by_experiment = true}),
      steps("log-every", &O::log_every, Role::kOutput,
            "Steps between progress lines when not on a terminal", 1),
      output("quiet", &O::quiet, Role::kOutput, "No progress on standard error",
             {.by_experiment = true}),
      output("json", &O::json, Role::kOutput, "The summary as JSON on standard output",
             {.by_experiment = true}),
      output("config", &O::config, Role::kOutput,
             "TOML file whose keys are the names of these flags; the command line wins",
             {.by_experiment = true}),
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
