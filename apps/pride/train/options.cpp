// The flags of `pride train`: declaration and checks.
// SPDX-License-Identifier: Apache-2.0
#include "train/options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <stdexcept>

#include "integer_check.h"
#include "nodes.h"
#include "number_check.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "pride/schedule.h"
#include "text/utf8.h"
#include "train/image_options.h"
#include "train/question_options.h"

namespace pride::app {
namespace {

// What is wrong with the value of a flag; CLI11 itself would let pass what std::stoll throws.
std::string neither_true_nor_false(const std::string& value) {
  try {
    CLI::detail::to_flag_value(value);
    return "";
  } catch (const std::logic_error&) {
    return concat(value, " is neither true nor false");
  }
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr std::int64_t kLargestSize = std::int64_t{1} << 20;  // of a model, in any direction
constexpr double kLongestTimeout = 7 * 24 * 3600;

CLI::Validator count(std::int64_t lowest, std::int64_t highest = kMostSteps) {
  return integer_check<std::int64_t>(lowest, highest);
}

void add_data_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--task", o.task,
                 "lm (text, as bytes or tokens), fewshot (questions with choices, for a language "
                 "model), cifar10, or imagenet (a folder of JPEG images for each class)")
      ->capture_default_str()
      ->group("Task");
  app.add_option(
         "--data", o.data,
         "lm: a text file or a folder of text; default: the C++ standard library's headers; with "
         "--vocab, shards of tokens. "
         "fewshot: a file of questions, or a folder of *.jsonl (docs/fewshot.md). "
         "cifar10: the folder with data_batch_1.bin[.gz] ...; imagenet: the folder with "
         "train/CLASS/*.jpg and val/CLASS/*.jpg; default for both: $PRIDE_DATA")
      ->group("Task");
  app.add_option(
         "--vocab", o.vocab,
         "lm: the data are shards of 16-bit tokens (`pride tokenize`, nanoGPT's or llm.c's) "
         "of the vocabulary in this folder: encoder.json and vocab.bpe. A file (its last "
         "tenth validates), or a folder of *.bin with the word train or val in their names. "
         "fewshot: the model's")
      ->group("Task");
  add_question_flags(app, o);
  app.add_option("--sharding", o.sharding,
                 "Each worker's samples: partition (its own part of each epoch's shuffle), "
                 "replicate (all of them, in its own order) or dirichlet:A (images: parts with "
                 "skewed labels, the more the smaller A > 0)")
      ->capture_default_str()
      ->group("Task");
  app.add_option("--vote-weight", o.vote_weight,
                 "A worker's votes: equal (one each), or samples (as many as it has training "
                 "samples, which dirichlet deals unequally; in units of N / 65535 of more than "
                 "65535 samples). For methods that exchange signs")
      ->check(CLI::IsMember({"equal", "samples"}))
      ->capture_default_str()
      ->group("Task");
  app.add_option("--seed", o.seed, "Of initial values, data order, augmentation, ties and zeros")
      ->capture_default_str()
      ->check(integer_check<std::uint64_t>(0))
      ->group("Task");
}

void add_model_flags(CLI::App& app, TrainOptions& o) {
  app.add_option(
         "--model", o.model,
         "lm, fewshot: gpt-small (default: 4 layers, 4 heads, width 128, context 128) or gpt2 (12, "
         "12, 768, 1024). Images: vit-small (default of cifar10: 4 layers, 4 heads, width 128, "
         "patch 8), vit-paper (6, 8, 512, 4), vit-s16 (default of imagenet: 12, 6, 384, 16) or "
         "vit-b16 (12, 12, 768, 16)")
      ->group("Model");
  app.add_option(
         "--init", o.init,
         "lm, fewshot: begin with this GPT-2 checkpoint in Hugging Face's layout (a folder with "
         "model.safetensors and config.json, or the file), which settles the model's sizes")
      ->group("Model");
  app.add_option(
         "--init-std", o.init_std,
         "Standard deviation of the initial weights (GPT-2's initializer_range); where a "
         "branch of a GPT ends, over sqrt(2 layers). Default: 1/sqrt(3 width) of gpt-small, "
         "0.02 of the others")
      ->check(number_check())
      ->group("Model");
  app.add_option(
         "--embedding-std", o.embedding_std,
         "lm, fewshot: the same of the tokens' embeddings, which are the head too. Default: "
         "1/sqrt(width) of gpt-small, 0.02 of gpt2")
      ->check(number_check())
      ->group("Model");
  app.add_option("--layers", o.layers, "Transformer blocks, instead of the model's")
      ->check(count(1, kLargestSize))
      ->group("Model");
  app.add_option("--heads", o.heads, "Attention heads, instead of the model's")
      ->check(count(1, kLargestSize))
      ->group("Model");
  app.add_option("--width", o.width, "Width of the residual stream, instead of the model's")
      ->check(count(1, kLargestSize))
      ->group("Model");
  app.add_option("--context", o.context,
                 "lm: length of a sample in tokens, instead of the model's; fewshot: most tokens "
                 "of a question")
      ->check(count(1, kLargestSize))
      ->group("Model");
  app.add_option("--patch", o.patch, "Images: side of a patch in pixels, instead of the model's")
      ->check(count(1, kLargestSize))
      ->group("Model");
}

void add_method_flags(CLI::App& app, TrainOptions& o) {
  const char* group = "Method";
  app.add_option("--method", o.method, "One of: " + join(method_names()))
      ->capture_default_str()
      ->group(group);
  app.add_option("--method-opt", o.method_options,
                 "The method's own option as key=value; may be repeated. `pride methods --method "
                 "NAME` lists them")
      ->group(group);
  app.add_option_function<std::string>(
         "--budget-bits",
         [&o](const std::string& bits) { o.method_options.push_back("budget_bits=" + bits); },
         "lion-cub-auto: bits sent per parameter, step and rank at most, on average; the same as "
         "--method-opt budget_bits=")
      ->check(number_check())
      ->group(group);
  app.add_option("--lr", o.lr, "Peak learning rate. Default: the method's")
      ->check(number_check())
      ->group(group);
  app.add_option("--beta1", o.beta1, "Default: the method's")->check(number_check())->group(group);
  app.add_option("--beta2", o.beta2, "Default: the method's")->check(number_check())->group(group);
  app.add_option("--eps", o.eps, "Default: the method's")->check(number_check())->group(group);
  app.add_option("--weight-decay", o.weight_decay,
                 "Decoupled, times the learning rate; biases, norms, embeddings and position "
                 "tables are left out. Default: the method's")
      ->check(number_check())
      ->group(group);
  app.add_flag("--decay-all", o.decay_all, "Weight decay on every tensor")->group(group);
  app.add_option("--schedule", o.schedule, "Of the learning rate: constant, cosine or linear")
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", o.warmup, "Steps of linear rise of the learning rate")
      ->capture_default_str()
      ->check(count(0))
      ->group(group);
  app.add_option("--final-lr-factor", o.final_lr_factor,
                 "Where cosine and linear end, as a factor of the peak")
      ->capture_default_str()
      ->check(number_check())
      ->group(group);
  app.add_option("--clip-norm", o.clip_norm,
                 "Local clipping: each worker scales its own gradient down to this 2-norm before "
                 "it enters the method. 0: none")
      ->capture_default_str()
      ->check(number_check())
      ->group(group);
  app.add_option(
         "--clip-global-norm", o.clip_global_norm,
         "Scales the mean gradient of all workers down to this 2-norm. Only for methods that "
         "have it: adamw, sgdm, lion. 0: none")
      ->capture_default_str()
      ->check(number_check())
      ->group(group);
  app.add_option(
         "--non-finite", o.non_finite,
         "On NaN or Inf in a gradient: raise (stop all workers with an error) or skip (drop "
         "the step on all workers; 20 dropped steps in a row are an error)")
      ->capture_default_str()
      ->group(group);
}

void add_batch_flags(CLI::App& app, TrainOptions& o, const char* group) {
  app.add_option("--batch", o.batch,
                 "Samples per worker and backward pass. Default: 8 for lm and fewshot, 32 for "
                 "images")
      ->check(count(1))
      ->group(group);
  app.add_option("--accumulate", o.accumulate, "Backward passes per step")
      ->capture_default_str()
      ->check(count(1, kLargestSize))
      ->group(group);
}

void add_bucket_flags(CLI::App& app, TrainOptions& o, const char* group) {
  CLI::Option* megabytes =
      app.add_option(
             "--bucket-mb", o.bucket_mb,
             "Target size of a bucket, in MiB of float32 gradients; never changes a result. "
             "Default: between processes chosen from the network, which is measured; else 4")
          ->check(number_check())
          ->group(group);
  app.add_option("--bucket-coords", o.bucket_coords, "The same, in coordinates")
      ->excludes(megabytes)
      ->check(count(1))
      ->group(group);
}

void add_size_flags(CLI::App& app, TrainOptions& o) {
  const char* group = "Size of the run";
  app.add_option("--workers", o.workers,
                 "Threads, each a worker with a model of its own. Default: 4. Under mpirun every "
                 "process is a worker and the flag may be left out")
      ->check(integer_check<int>(1, 1024))
      ->group(group);
  app.add_option("--threads-per-process", o.threads_per_process,
                 "Under mpirun: workers in each process, threads of it. Default: every process is "
                 "one worker")
      ->check(integer_check<int>(1, 1024))
      ->group(group);
  add_batch_flags(app, o, group);
  CLI::Option* epochs = app.add_option("--epochs", o.epochs,
                                       "Passes over the training set, fractions allowed; with "
                                       "replicate, of each worker. Default: 1")
                            ->check(number_check())
                            ->group(group);
  app.add_option("--steps", o.steps, "Steps, instead of --epochs")
      ->excludes(epochs)
      ->check(count(1))
      ->group(group);
  app.add_option("--device", o.device,
                 "cpu or cuda (needs a CUDA build of libtorch; the method still runs on the host)")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dtype", o.dtype,
                 "float32, or bfloat16 for the model's weights, activations and gradients; the "
                 "parameters that the method steps, and its state, are float32 in any case")
      ->capture_default_str()
      ->group(group);
  add_bucket_flags(app, o, group);
  // not add_flag(..., o.overlap): it would begin with false
  app.add_flag_function(
         "--overlap,!--no-overlap", [&o](std::int64_t given) { o.overlap = given > 0; },
         "Exchange on threads of its own, beside backward and the method's arithmetic. Default: "
         "between processes")
      ->check([](const std::string& value) { return neither_true_nor_false(value); })
      ->group(group);
  app.add_option("--exchange-threads", o.exchange_threads,
                 "With --overlap: buckets on their way at a time")
      ->capture_default_str()
      ->check(integer_check<int>(1, 16))
      ->group(group);
  app.add_option("--hierarchical", o.hierarchical, kHierarchicalHelp)
      ->type_name("L|auto")
      ->check(CLI::Validator(wrong_hierarchical, ""))
      ->group(group);
  app.add_option(
         "--timeout", o.timeout_s,
         "Longest wait for another worker, in seconds, also at the start; at most a week (604800)")
      ->capture_default_str()
      ->check(number_check())
      ->group(group);
}

void add_output_flags(CLI::App& app, TrainOptions& o) {
  const char* group = "Output";
  app.add_option("--out", o.out,
                 "Folder for metrics.jsonl, summary.json, model.safetensors and checkpoints")
      ->group(group);
  app.add_flag("--overwrite", o.overwrite, "Replace the results of an earlier run in --out")
      ->group(group);
  app.add_option("--eval-every", o.eval_every, "Evaluate each so many steps. 0: at the end only")
      ->capture_default_str()
      ->check(count(0))
      ->group(group);
  app.add_option("--eval-batches", o.eval_batches,
                 "Batches of an evaluation (16 texts, 8 questions or 250 images each), spread "
                 "evenly over the validation or test set. 0: all of it. Default: 64 for lm, else 0")
      ->check(count(0))
      ->group(group);
  app.add_option("--save-every", o.save_every,
                 "Checkpoint into --out each so many steps, and when interrupted. 0: never")
      ->capture_default_str()
      ->check(count(0))
      ->group(group);
  app.add_option("--resume", o.resume,
                 "Go on from a checkpoint folder, or from the last checkpoint in an --out folder")
      ->group(group);
  app.add_option("--resume-local", o.resume_local,
                 "With --resume, on any number of workers: what becomes of state that each worker "
                 "has of its own. keep: worker r goes on with that of worker r (modulo their "
                 "number then), average: all with the mean, reset: all with zeros")
      ->check(CLI::IsMember({"keep", "average", "reset"}))
      ->group(group);
  app.add_option("--tensorboard", o.tensorboard,
                 "Folder for an event file of TensorBoard, beside whatever --out says")
      ->group(group);
  app.add_option("--log-every", o.log_every, "Steps between progress lines when not on a terminal")
      ->capture_default_str()
      ->check(count(1))
      ->group(group);
  app.add_flag("--quiet", o.quiet, "No progress on standard error")->group(group);
  app.add_flag("--json", o.json, "The summary as JSON on standard output")->group(group);
  app.add_option("--config", o.config,
                 "TOML file whose keys are the names of these flags; the command line wins")
      ->group(group);
}

void check_positive(const char* flag, double value, bool zero_too = false) {
  PRIDE_CHECK(std::isfinite(value), flag, " ", value, ": must be finite");
  PRIDE_CHECK(zero_too ? value >= 0 : value > 0, flag, " ", value,
              zero_too ? ": must be 0 or more" : ": must be more than 0");
}

void check_at_most(const char* flag, double value, double limit) {
  check_positive(flag, value);
  PRIDE_CHECK(value <= limit, flag, " ", value, ": must be at most ", limit);
}

void check_choice(const char* flag, const std::string& value,
                  const std::vector<std::string>& choices) {
  for (const std::string& choice : choices) {
    if (value == choice) return;
  }
  throw InvalidArgument(concat(flag, " ", value, ": must be one of ", join(choices)));
}

}  // namespace

void add_workload_flags(CLI::App& app, TrainOptions& options) {
  add_data_flags(app, options);
  add_model_flags(app, options);
  add_image_flags(app, options);
  add_batch_flags(app, options, "Size of the run");
  add_bucket_flags(app, options, "Size of the run");
}

void add_train_flags(CLI::App& app, TrainOptions& options) {
  add_data_flags(app, options);
  add_model_flags(app, options);
  add_image_flags(app, options);
  add_target_flags(app, options);
  add_method_flags(app, options);
  add_size_flags(app, options);
  add_output_flags(app, options);
}

bool is_language(const std::string& task) { return task == "lm" || task == "fewshot"; }

std::int64_t default_batch(const std::string& task) { return is_language(task) ? 8 : 32; }

void check(const TrainOptions& o) {
  check_choice("--task", o.task, {"lm", "fewshot", "cifar10", "imagenet"});
  check_choice("--device", o.device, {"cpu", "cuda"});
  check_choice("--dtype", o.dtype, {"float32", "bfloat16"});
  check_choice("--non-finite", o.non_finite, {"raise", "skip"});
  schedule_kind(o.schedule);
  const bool language = is_language(o.task);
  PRIDE_CHECK(o.vocab.empty() || language, "--vocab is for lm and fewshot only");
  PRIDE_CHECK(o.init.empty() || language, "--init is for lm and fewshot only");
  check_question_options(o);
  check_image_options(o);
  PRIDE_CHECK(o.init.empty() || o.model.empty(), "--init and --model: give one of them");
  PRIDE_CHECK(o.workers >= 0 && o.workers <= 1024, "--workers ", o.workers, ": must be 1 to 1024");
  check_utf8("--data", o.data);
  check_utf8("--vocab", o.vocab);
  check_utf8("--init", o.init);
  check_utf8("--out", o.out);
  check_utf8("--resume", o.resume);
  check_utf8("--tensorboard", o.tensorboard);
  if (o.init_std) check_positive("--init-std", *o.init_std);
  if (o.embedding_std) check_positive("--embedding-std", *o.embedding_std);
  check_positive("--batch", static_cast<double>(o.batch), true);
  check_positive("--accumulate", static_cast<double>(o.accumulate));
  if (o.epochs) check_positive("--epochs", *o.epochs);
  if (o.steps) check_positive("--steps", static_cast<double>(*o.steps));
  PRIDE_CHECK(!o.steps || !o.epochs, "--steps and --epochs: give one of them");
  if (o.lr) check_positive("--lr", *o.lr, true);
  if (o.weight_decay) check_positive("--weight-decay", *o.weight_decay, true);
  check_positive("--warmup", static_cast<double>(o.warmup), true);
  check_positive("--final-lr-factor", o.final_lr_factor, true);
  check_positive("--clip-norm", o.clip_norm, true);
  check_positive("--clip-global-norm", o.clip_global_norm, true);
  check_positive("--eval-every", static_cast<double>(o.eval_every), true);
  check_positive("--eval-batches", static_cast<double>(o.eval_batches.value_or(0)), true);
  check_positive("--save-every", static_cast<double>(o.save_every), true);
  check_positive("--log-every", static_cast<double>(o.log_every));
  if (o.bucket_mb) check_at_most("--bucket-mb", *o.bucket_mb, 0x1p20);
  if (o.bucket_coords) check_positive("--bucket-coords", static_cast<double>(*o.bucket_coords));
  check_at_most("--timeout", o.timeout_s, kLongestTimeout);
  PRIDE_CHECK(o.resume_local.empty() || !o.resume.empty(), "--resume-local needs --resume");
  PRIDE_CHECK(o.save_every == 0 || !o.out.empty(), "--save-every needs --out");
}

}  // namespace pride::app
