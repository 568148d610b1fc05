// Task: the data, the model and the metrics of what is trained. Shared by all workers, read-only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "fewshot/tally.h"
#include "models/model.h"
#include "train/options.h"
#include "train/sampler.h"

namespace pride::app {

struct Batch {
  at::Tensor input;        // what Model::logits takes
  at::Tensor target;       // int64, one class per row of the logits
  at::Tensor places = {};  // int64, the rows that have a target; undefined: all
  // Of a mixed batch: each row is `share` of its target's sample, the rest of `other`'s.
  at::Tensor other = {};
  double share = 1;
};

// Batches in the order in which they were asked for, some of them made ahead by threads.
class BatchQueue {
 public:
  virtual ~BatchQueue() = default;

  // How many batches should be asked for before the first is taken.
  virtual std::size_t depth() const noexcept = 0;
  virtual void ask_train(std::span<const Draw> draws) = 0;
  virtual void ask_eval(std::size_t index) = 0;
  // The oldest one; waits for it. Throws what making it threw. REQUIRES: one was asked for.
  virtual Batch take() = 0;
};

// Sums over evaluated targets; exact counts, sums in double.
struct EvalSums {
  double loss = 0;  // nats
  std::int64_t correct = 0, count = 0;
  Tally choices = {};  // of tasks with questions, which count nothing else
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string_view name() const noexcept = 0;
  virtual std::string_view model_name() const noexcept = 0;
  virtual std::unique_ptr<Model> make_model() const = 0;
  virtual nlohmann::ordered_json model_size() const = 0;
  // Replaces the initial values drawn from the seed, where the task has others. Host tensors only.
  virtual void load_initial(Model&) const {}
  // What stands in config.json beside model.safetensors; null: no such file.
  virtual nlohmann::ordered_json model_config() const;

  virtual std::size_t n_samples() const noexcept = 0;
  virtual std::span<const std::uint16_t> labels() const noexcept { return {}; }
  virtual Batch train_batch(std::span<const Draw> draws) const = 0;

  // Batches of one evaluation, spread evenly over the evaluation set.
  virtual std::size_t n_eval_batches() const noexcept = 0;
  virtual Batch eval_batch(std::size_t index) const = 0;
  // Adds what `model` makes of eval_batch(index), which is `batch` on the model's device. Without
  // gradient.
  virtual void add_eval_batch(Model& model, std::size_t index, const Batch& batch,
                              EvalSums& sums) const;

  // train_batch and eval_batch, made when they are taken unless the task can do better. One queue
  // for one thread; the task must outlive it.
  virtual std::unique_ptr<BatchQueue> make_queue() const;

  // What an evaluation is called and how it reads: {"loss": ..., "accuracy": ...} and the like.
  virtual nlohmann::ordered_json eval_metrics(const EvalSums& sums) const = 0;

  // Source, hash and sizes of the data, for summary.json and the first line of a run.
  virtual nlohmann::ordered_json data_facts() const = 0;
  // What should be known of the data before the first step, for the log.
  virtual std::vector<std::string> notes() const { return {}; }
};

// Loads the data and settles the model. Throws DataError, InvalidArgument.
std::unique_ptr<Task> make_task(const TrainOptions& options);

// One per task, called by make_task.
std::unique_ptr<Task> make_text_task(const TrainOptions& options);
std::unique_ptr<Task> make_image_task(const TrainOptions& options);
std::unique_ptr<Task> make_choice_task(const TrainOptions& options);
std::unique_ptr<Task> make_folder_task(const TrainOptions& options);

}  // namespace pride::app
