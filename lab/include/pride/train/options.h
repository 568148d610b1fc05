// TrainOptions: the settings of a training run. Flag::table() names and checks each of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pride::train {

inline constexpr int kDefaultWorkers = 4;  // threads, if there is no job

struct TrainOptions {
  std::string task = "lm";    // a registered name; empty: the caller's own task
  std::string data = {};      // empty: the task's default
  std::string vocab = {};     // language: folder with the vocabulary; empty: bytes
  std::int64_t shots = 0;     // fewshot: examples in the prompts of an evaluation
  std::int64_t examples = 0;  // fewshot: training questions per task; 0: all
  bool skip_long = false;     // fewshot: leave out questions with a choice longer than the context

  std::string model = {};  // a registered name; empty: the task's default
  std::string init = {};  // language: checkpoint to start from; empty: initial values from the seed
  std::optional<std::int64_t> layers = {}, heads = {}, width = {}, context = {}, patch = {};
  std::optional<double> init_std = {}, embedding_std = {};  // of initial weights; none: the model's
  std::optional<std::int64_t> image_size = {};  // imagenet: side of the model's input, in pixels
  std::optional<int> loader_threads = {};       // imagenet: threads per worker that decode images
  double label_smoothing = 0, mixup = 0;        // of training; 0: none

  std::string method = "dlion-vote";
  std::vector<std::string> method_options = {};  // "key=value"
  std::string groups = {};  // tensors with another method, "WORDS: METHOD key=value; ..."
  std::optional<double> lr = {}, beta1 = {}, beta2 = {}, eps = {}, momentum = {},
                        weight_decay = {};  // none: the method's
  bool decay_all = false;
  std::string vary = {};  // other values over the run, "momentum=0.85@0,0.97@300; ..."
  std::string schedule = "cosine";
  std::int64_t warmup = 0;  // steps
  double final_lr_factor = 0;
  double clip_norm = 0, clip_global_norm = 0;  // 0: none

  int workers = 0;          // 0: 4 threads, or the processes of the job
  int virtual_workers = 0;  // played by this process in turn; 0: none
  std::int64_t batch = 0;   // samples per worker and backward pass; 0: the task's default
  std::int64_t accumulate = 1;
  std::string sharding = "partition";
  std::string vote_weight = "equal";  // or "samples": of a worker's data
  // Simulates workers that join and leave: the share of workers in each round.
  double participation = 1;
  std::string absent = "replay";  // or "stale": absent workers never apply the round's result
  std::optional<double> epochs = {};
  std::optional<std::int64_t> steps = {};
  std::uint64_t seed = 0;

  // A coordinator instead of other workers: this process is one worker of its run.
  std::string coordinator = {};   // "host:port"; empty: none
  std::string certificates = {};  // folder; empty: none, only for a coordinator on this machine
  std::string worker_name = {};   // empty: from the certificate, or from host and process
  std::optional<int> shards = {}, shard = {};  // number of parts of the data; this worker's part
  std::string personal = {};  // patterns of tensors that are never sent; empty: none

  std::int64_t eval_every = 0;                    // steps; 0: at the end only
  std::optional<std::int64_t> eval_batches = {};  // 0: the whole evaluation set
  std::int64_t save_every = 0;                    // steps; 0: never
  std::int64_t keep_checkpoints = 3;              // the newest, and the best; 0: all
  std::string resume = {};
  std::string resume_local = {};  // "keep", "average", "reset"; empty: needs as many workers

  std::string out = {};  // folder of results; empty: none
  bool overwrite = false;
  std::string tensorboard = {};  // folder of event files; empty: none
  std::int64_t log_every = 10;
  bool quiet = false, json = false;
  std::string config = {};  // TOML file with flags; the command line overrides them

  std::optional<double> bucket_mb = {};
  std::optional<std::int64_t> bucket_coords = {};
  std::optional<bool> overlap = {};  // none: no; `pride train` turns it on between processes
  int exchange_threads = 4;
  std::string hierarchical = {};  // "L", "auto"; empty: no hierarchical route
  std::string non_finite = "raise";
  std::string device = "cpu", dtype = "float32";
  std::string run_on = "auto";  // where the method runs: RunOn of ModuleTensors
  double timeout_s = 300;
};

// Throws InvalidArgument, naming the flag, on impossible values.
void check(const TrainOptions& options);

}  // namespace pride::train
