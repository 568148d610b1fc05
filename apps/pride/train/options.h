// What `pride train` was asked to do, and the flags that say it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pride::app {

struct TrainOptions {
  std::string task = "lm";
  std::string data;           // empty: $PRIDE_DATA for images, the default text for lm
  std::string vocab;          // lm, fewshot: folder with the vocabulary of the model; empty: bytes
  std::int64_t shots = 0;     // fewshot: examples in the prompts of an evaluation
  std::int64_t examples = 0;  // fewshot: questions of each task to train on; 0: all
  bool skip_long = false;     // fewshot: leave out questions with a choice longer than the context
  std::string config;         // TOML file with flags not given on the command line

  std::string model;  // empty: the task's default
  std::string init;   // lm, fewshot: checkpoint to begin with; empty: initial values from the seed
  std::optional<std::int64_t> layers, heads, width, context, patch;
  std::optional<double> init_std, embedding_std;  // of initial weights; none: the model's
  std::optional<std::int64_t> image_size;  // imagenet: side of what the model sees, in pixels
  std::optional<int> loader_threads;       // imagenet: that read images ahead, of each worker
  double label_smoothing = 0, mixup = 0;   // of training; 0: none

  std::string method = "dlion-vote";
  std::vector<std::string> method_options;  // "key=value"
  std::optional<double> lr, beta1, beta2, eps, weight_decay;
  bool decay_all = false;
  std::string schedule = "cosine";
  std::int64_t warmup = 0;
  double final_lr_factor = 0;
  double clip_norm = 0, clip_global_norm = 0;  // 0: none

  int workers = 0;              // 0: 4 threads, or the processes of the MPI job
  int threads_per_process = 0;  // under MPI; 0: every process is one worker
  std::int64_t batch = 0;       // 0: the task's default
  std::int64_t accumulate = 1;
  std::string sharding = "partition";
  std::string vote_weight = "equal";  // or "samples": of a worker's data
  std::optional<double> epochs;
  std::optional<std::int64_t> steps;
  std::uint64_t seed = 0;

  std::int64_t eval_every = 0;               // 0: at the end only
  std::optional<std::int64_t> eval_batches;  // 0: the whole evaluation set
  std::int64_t log_every = 10;
  bool quiet = false, json = false;

  std::string out;
  bool overwrite = false;
  std::int64_t save_every = 0;
  std::string resume;
  std::string resume_local;  // "keep", "average", "reset"; empty: as many workers as before
  std::string tensorboard;   // folder of event files; empty: none

  std::optional<double> bucket_mb;
  std::optional<std::int64_t> bucket_coords;
  std::optional<bool> overlap;  // not given: between processes
  int exchange_threads = 4;
  std::string hierarchical;  // empty: exchanges have one level
  std::string non_finite = "raise";
  std::string device = "cpu", dtype = "float32";
  double timeout_s = 300;
};

// Declares every flag, with its help, on `app`; parsing fills `options`, which must live as long.
void add_train_flags(CLI::App& app, TrainOptions& options);

// Of these flags, what a step does: task, model, batch and buckets.
void add_workload_flags(CLI::App& app, TrainOptions& options);

// Gives the flags of `app` that the command line left out the values of a TOML file. Keys are the
// flags' names without dashes, at top level or in a table [train]. Throws InvalidArgument, naming
// file, line and key: unknown key, wrong kind of value; DataError: no file, no TOML.
void apply_config(CLI::App& app, const std::string& file);

// Whether the task's model is one of language; the other tasks are of images.
bool is_language(const std::string& task);

// Samples per worker and backward pass if --batch is not given.
std::int64_t default_batch(const std::string& task);

// Throws InvalidArgument, naming the flag, on values that no run can have.
void check(const TrainOptions& options);

// The same settings under the flags' names; those that were left to the method are null.
nlohmann::ordered_json to_json(const TrainOptions& options);

}  // namespace pride::app
