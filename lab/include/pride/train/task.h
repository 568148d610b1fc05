// Task: the data and the metrics of a training. Shared by all workers, read-only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/train/facts.h"
#include "pride/train/model.h"
#include "pride/train/options.h"
#include "pride/train/sampler.h"

namespace pride::train {

struct Batch {
  at::Tensor input;        // the input of Model::logits
  at::Tensor target;       // int64, one class per row of the logits
  at::Tensor places = {};  // int64, the rows with a target; undefined: all
  // With mixup: each row of `input` is share * its sample + (1 - share) * the sample of `other`.
  at::Tensor other = {};
  double share = 1;
};

// Batches in the order of their requests. Threads may make some of them ahead.
class BatchQueue {
 public:
  virtual ~BatchQueue() = default;

  // The number of batches to request before the first is used.
  virtual std::size_t depth() const noexcept = 0;
  virtual void ask_train(std::span<const Draw> draws) = 0;
  virtual void ask_eval(std::size_t index) = 0;
  // Waits for the oldest requested batch; rethrows the exception of its maker. REQUIRES: it exists.
  virtual Batch take() = 0;
};

// Sums over evaluated targets, added up over ranks: exact counts, sums in double.
struct EvalSums {
  double loss = 0;  // nats
  std::int64_t correct = 0, count = 0;
  std::array<double, 8> own = {};  // the task's other sums
};

// The description of the data in summary.json and in the first line of a run.
struct DataFacts {
  std::string source;
  std::string hash;  // equal on all ranks, wherever their data lie
  Facts more;        // sizes
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string name() const = 0;
  virtual const ModelMaker& model() const = 0;

  virtual std::size_t n_samples() const = 0;
  // One per sample, for --sharding dirichlet; empty: none.
  virtual std::span<const std::uint16_t> labels() const { return {}; }
  virtual Batch train_batch(std::span<const Draw> draws) const = 0;

  // Mean loss over the batch's targets, with gradient. By default cross-entropy with label
  // smoothing: `smoothing` of each target is spread over all classes.
  virtual at::Tensor loss(Model& model, const Batch& batch, double smoothing) const;

  // Batches of one evaluation, spread evenly over the evaluation set.
  virtual std::size_t n_eval_batches() const = 0;
  virtual Batch eval_batch(std::size_t index) const = 0;
  // Adds the results of `model` on eval_batch(index), which is `batch` on the model's device:
  // by default loss, correct and count of its targets. Without gradient.
  virtual void add_eval_batch(Model& model, std::size_t index, const Batch& batch,
                              EvalSums& sums) const;
  // By default loss, accuracy and count.
  virtual Facts eval_metrics(const EvalSums& sums) const;

  // train_batch and eval_batch, made on use unless the task prefetches. One queue for one thread;
  // the task must outlive it.
  virtual std::unique_ptr<BatchQueue> make_queue() const;

  virtual DataFacts data() const = 0;
  // Notes about the data for the user, logged before the first step.
  virtual std::vector<std::string> notes() const { return {}; }
};

// A row of the registry of tasks.
struct TaskInfo {
  std::string name = {}, about = {};  // for --task and its help
  std::string data = {};              // what --data is, for its help
  std::int64_t default_batch = 8;
  std::vector<std::string> flags = {};  // of the settings of only some tasks, those of this one
  // Loads the data and determines the model. Throws DataError, InvalidArgument.
  std::function<std::unique_ptr<Task>(const TrainOptions&)> make = {};
};

const std::vector<TaskInfo>& tasks();

// Adds a row. REQUIRES: before the first thread starts; a new name.
void register_task(TaskInfo info);

// Throws InvalidArgument if there is no task of that name.
const TaskInfo& task_info(const std::string& name);

// The task of options.task. Throws InvalidArgument, DataError.
std::unique_ptr<Task> make_task(const TrainOptions& options);

// The batch on the device.
Batch moved_to(const at::Device& device, const Batch& batch);

}  // namespace pride::train
