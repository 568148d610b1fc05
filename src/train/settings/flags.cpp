// The table of settings.
// SPDX-License-Identifier: Apache-2.0
#include "pride/train/flags.h"

#include <algorithm>

#include "pride/error.h"
#include "pride/registry.h"
#include "train/settings/settings.h"

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
           "lm: the data are shards of 16-bit tokens (`pride tokenize`, nanoGPT's or llm.c's) of "
           "the vocabulary in this folder: encoder.json and vocab.bpe. A file (its last tenth "
           "validates), or a folder of *.bin with the word train or val in their names. fewshot: "
           "the model's",
           {.may_differ = true}),
      task("examples", &O::examples, Role::kTask,
           "fewshot: questions of each task to train on, chosen by the seed. 0: all of those that "
           "are to train on",
           {.highest = kLargestSize}),
      task("shots", &O::shots, Role::kTask,
           "fewshot: questions with their answers before each question of an evaluation",
           {.highest = kLargestSize}),
      task("skip-long", &O::skip_long, Role::kTask,
           "fewshot: leave out questions with a choice that is longer than the context, which are "
           "an error otherwise"),
      task("sharding", &O::sharding, Role::kBatches,
           "Each worker's samples: partition (its own part of each epoch's shuffle), replicate "
           "(all of them, in its own order) or dirichlet:A (images: parts with skewed labels, the "
           "more the smaller A > 0)"),
      task("vote-weight", &O::vote_weight, Role::kTraining,
           "A worker's votes: equal (one each), or samples (as many as it has training samples, "
           "which dirichlet deals unequally; in units of N / 65535 of more than 65535 samples). "
           "For methods that exchange signs, or with --coordinator means",
           {.choices = {"equal", "samples"}}),
      task("participation", &O::participation, Role::kTraining,
           "Simulates workers that come and go: in each round (the steps up to an exchange) this "
           "share of the workers takes part, drawn by the seed; the others compute nothing and "
           "have no vote; in a mean they count as 0, and error feedback still sends what it holds. "
           "Bytes are those of a round of all. A coordinator's workers come and go by themselves",
           {.highest = 1, .above = true}),
      task("absent", &O::absent, Role::kTraining,
           "What workers that sat out a round do with its result: replay (apply it) or stale "
           "(miss it for good, to see what that costs: parameters are no longer equal, and an "
           "evaluation is the mean over the workers' own)",
           {.choices = {"replay", "stale"}}),
      task("seed", &O::seed, Role::kBatches,
           "Of initial values, data order, augmentation, ties and zeros",
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
            "lm, fewshot: begin with this GPT-2 checkpoint in Hugging Face's layout (a folder with "
            "model.safetensors and config.json, or the file), which settles the model's sizes",
            {.rival = "model", .may_differ = true}),
      model("init-std", &O::init_std, Role::kTask,
            "Standard deviation of the initial weights (GPT-2's initializer_range); where a branch "
            "of a GPT ends, over sqrt(2 layers). Default: 1/sqrt(3 width) of gpt-small, 0.02 of "
            "the others",
            {.above = true}),
      model("embedding-std", &O::embedding_std, Role::kTask,
            "lm, fewshot: the same of the tokens' embeddings, which are the head too. Default: "
            "1/sqrt(width) of gpt-small, 0.02 of gpt2",
            {.above = true}),
      size("layers", &O::layers, "Transformer blocks, instead of the model's"),
      size("heads", &O::heads, "Attention heads, instead of the model's"),
      size("width", &O::width, "Width of the residual stream, instead of the model's"),
      size("context", &O::context,
           "lm: length of a sample in tokens, instead of the model's; fewshot: most tokens of a "
           "question"),
      size("patch", &O::patch, "Images: side of a patch in pixels, instead of the model's"),
      images("image-size", &O::image_size, Role::kTask,
             "imagenet: side of the crops that the model sees, in pixels. Default: 224",
             {.lowest = 1, .highest = 4096}),
      images("loader-threads", &O::loader_threads, Role::kSpeed,
             "imagenet: threads of each worker that read and decode images ahead of the step; "
             "never changes a result. 0: none, the worker does it itself. Default: 2",
             {.highest = 256, .may_differ = true}),
      images("label-smoothing", &O::label_smoothing, Role::kTraining,
             "Images, in training: this part of each target is spread over all classes",
             {.highest = 1, .below = true}),
      images("mixup", &O::mixup, Role::kTraining,
             "Images, in training: batches are mixed with their own reverse, in shares from "
             "Beta(A, A). 0: none"),
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
          "The method's own option as key=value; may be repeated. `pride methods --method NAME` "
          "lists them"),
      method("budget-bits", &O::budget_bits, Role::kMethod,
             "lion-cub-auto: bits sent per parameter, step and rank at most, on average; the same "
             "as --method-opt budget_bits=",
             {.above = true}),
      own("lr", &O::lr, "Peak learning rate. Default: the method's, larger for small models"),
      own("beta1", &O::beta1, "Default: the method's"),
      own("beta2", &O::beta2, "Default: the method's"),
      own("eps", &O::eps, "Default: the method's"),
      own("weight-decay", &O::weight_decay,
          "Decoupled, times the learning rate; biases, norms, embeddings and position tables are "
          "left out. Default: the method's"),
      own("decay-all", &O::decay_all, "Weight decay on every tensor"),
      method("schedule", &O::schedule, Role::kTraining, "Of the learning rate",
             {.choices = {"constant", "cosine", "linear"}}),
      method("warmup", &O::warmup, Role::kMethod, "Steps of linear rise of the learning rate",
             {.highest = kMostSteps}),
      method("final-lr-factor", &O::final_lr_factor, Role::kTraining,
             "Where cosine and linear end, as a factor of the peak"),
      own("clip-norm", &O::clip_norm,
          "Local clipping: each worker scales its own gradient down to this 2-norm before it "
          "enters the method. 0: none"),
      own("clip-global-norm", &O::clip_global_norm,
          "Scales the mean gradient of all workers down to this 2-norm. Only for methods that have "
          "it: adamw, sgdm, lion. 0: none"),
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
          "Threads, each a worker with a model of its own. Default: 4. Under mpirun every process "
          "is a worker and the flag may be left out",
          {.lowest = 1, .highest = 1024}),
      run("virtual-workers", &O::virtual_workers, Role::kSpeed,
          "Workers that this process plays one after the other over one copy of the model: the "
          "results and the counted bytes of as many --workers in the memory of one, in N times "
          "the time",
          {.lowest = 1, .highest = 1024, .rival = "workers"}),
      run("threads-per-process", &O::threads_per_process, Role::kSpeed,
          "Under mpirun: workers in each process, threads of it. Default: every process is one "
          "worker",
          {.lowest = 1, .highest = 1024, .by_experiment = true}),
      run("batch", &O::batch, Role::kBatches, "", {.lowest = 1, .highest = kMostSteps}),
      run("accumulate", &O::accumulate, Role::kBatches, "Backward passes per step",
          {.lowest = 1, .highest = kLargestSize}),
      run("epochs", &O::epochs, Role::kBatches,
          "Passes over the training set, fractions allowed; with replicate, of each worker. "
          "Default: 1",
          {.above = true}),
      run("steps", &O::steps, Role::kBatches, "Steps, instead of --epochs",
          {.lowest = 1, .highest = kMostSteps, .rival = "epochs"}),
      run("device", &O::device, Role::kTraining,
          "cpu or cuda (needs a CUDA build of libtorch). The ranks of a machine take its GPUs in "
          "turn",
          {.choices = {"cpu", "cuda"}}),
      run("run-on", &O::run_on, Role::kTraining,
          "With --device cuda, where the method runs: auto (on the GPU if it can, else on the "
          "host, "
          "with a line that says why), host (gradients are copied there) or device (an error if it "
          "cannot). The same bits, but for products of matrices",
          {.choices = {"auto", "host", "device"}}),
      run("dtype", &O::dtype, Role::kTraining,
          "float32, or bfloat16 for the model's weights, activations and gradients; the parameters "
          "that the method steps, and its state, are float32 in any case",
          {.choices = {"float32", "bfloat16"}}),
      run("bucket-mb", &O::bucket_mb, Role::kTraining,
          "Target size of a bucket, in MiB of float32 gradients; never changes a result. Default: "
          "between processes chosen from the network, which is measured; else 4",
          {.highest = kLargestSize, .above = true}),
      run("bucket-coords", &O::bucket_coords, Role::kTraining, "The same, in coordinates",
          {.lowest = 1, .highest = kMostSteps, .rival = "bucket-mb"}),
      run("overlap", &O::overlap, Role::kSpeed,
          "Exchange on threads of its own, beside backward (but for --device cuda with the method "
          "on "
          "the host) and the method's arithmetic. Default: between processes"),
      run("exchange-threads", &O::exchange_threads, Role::kSpeed,
          "With --overlap: buckets on their way at a time", {.lowest = 1, .highest = 16}),
      run("hierarchical", &O::hierarchical, Role::kTraining, kHierarchicalHelp,
          {.wrong = wrong_hierarchical, .type = "L|auto"}),
      run("timeout", &O::timeout_s, Role::kSpeed,
          "Longest wait for another worker, in seconds, also at the start; at most a week (604800)",
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
            "Train as one worker of the run of `pride serve` at this HOST:PORT, with workers that "
            "come and go; steps are those of the run. For methods that vote, or take a mean",
            {.may_differ = true, .by_experiment = true}),
      own("certificates", &O::certificates,
          "Folder of `pride certs worker`; without it the coordinator must be on this machine"),
      own("worker-name", &O::worker_name,
          "Of this worker in the run. Default: its certificate's; else of host and process"),
      part("shards", &O::shards, 1, "coordinator",
           "Parts that --sharding deals the data to. Default: none, each worker draws from all of "
           "its data, in an order of its own"),
      part("shard", &O::shard, 0, "shards",
           "This worker's part, from 0. Default: its number in the run, modulo --shards"),
      group("personal", &O::personal, Role::kTraining,
            "Tensors that stay with this worker, as patterns of their names: 'head.*,*.norm.*'; or "
            "vectors (norms and biases), embeddings, first, last. All workers give the same; they "
            "take steps of their own, by the method or its local rule, and nothing of them is sent",
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
            "Evaluate each so many steps. 0: at the end only"),
      steps("eval-batches", &O::eval_batches, Role::kBatches,
            "Batches of an evaluation (16 texts, 8 questions or 250 images each), spread evenly "
            "over the validation or test set. 0: all of it. Default: 64 for lm, else 0"),
      output("save-every", &O::save_every, Role::kRecords,
             "Checkpoint into --out each so many steps, and when interrupted. 0: never",
             {.highest = kMostSteps, .needs = "out", .by_experiment = true}),
      output("keep-checkpoints", &O::keep_checkpoints, Role::kRecords,
             "With --save-every: newest checkpoints to keep, beside the one of the lowest "
             "evaluation loss. 0: all",
             {.highest = kMostSteps, .by_experiment = true}),
      output("resume", &O::resume, Role::kRecords,
             "Go on from a checkpoint folder, or from the last checkpoint in an --out folder",
             {.by_experiment = true}),
      output("resume-local", &O::resume_local, Role::kRecords,
             "With --resume, on any number of workers: what becomes of state that each worker has "
             "of its own. keep: worker r goes on with that of worker r (modulo their number then), "
             "average: all with the mean, reset: all with zeros",
             {.choices = {"keep", "average", "reset"}, .needs = "resume"}),
      output("tensorboard", &O::tensorboard, Role::kOutput,
             "Folder for an event file of TensorBoard, beside whatever --out says",
             {.by_experiment = true}),
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
