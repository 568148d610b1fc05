// Tasks: default behaviour, evaluation, and the registry.
// SPDX-License-Identifier: Apache-2.0
#include "pride/train/task.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <vector>

#include "pride/error.h"
#include "train/evaluation.h"

namespace pride::train {
namespace {

// Makes a batch on use: for tasks with cheap batches.
class DirectQueue final : public BatchQueue {
 public:
  explicit DirectQueue(const Task& task) : task_(task) {}

  std::size_t depth() const noexcept override { return 1; }
  void ask_train(std::span<const Draw> draws) override {
    asked_.emplace_back([this, own = std::vector<Draw>(draws.begin(), draws.end())] {
      return task_.train_batch(own);
    });
  }
  void ask_eval(std::size_t index) override {
    asked_.emplace_back([this, index] { return task_.eval_batch(index); });
  }
  Batch take() override {
    PRIDE_CHECK(!asked_.empty(), "batches: none was requested");
    const auto make = std::move(asked_.front());
    asked_.pop_front();
    return make();
  }

 private:
  const Task& task_;
  std::deque<std::function<Batch()>> asked_;
};

// one row of float32 for each target, whatever the model calculates in
at::Tensor target_rows(Model& model, const Batch& batch) {
  if (batch.places.defined()) return model.logits_at(batch.input, batch.places).to(at::kFloat);
  const at::Tensor logits = model.logits(batch.input);
  return logits.view({-1, logits.size(-1)}).to(at::kFloat);
}

at::Tensor losses_of(const at::Tensor& rows, const at::Tensor& target) {
  return at::cross_entropy_loss(rows, target, {}, at::Reduction::None).cpu().contiguous();
}

}  // namespace

std::unique_ptr<BatchQueue> Task::make_queue() const {
  return std::make_unique<DirectQueue>(*this);
}

Facts Task::eval_metrics(const EvalSums& sums) const {
  const auto count = static_cast<double>(sums.count);
  return {{"loss", sums.loss / count},
          {"accuracy", static_cast<double>(sums.correct) / count},
          {"count", sums.count}};
}

Batch moved_to(const at::Device& device, const Batch& batch) {
  const auto moved = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device) : tensor;
  };
  return {moved(batch.input), moved(batch.target), moved(batch.places), moved(batch.other),
          batch.share};
}

at::Tensor mean_loss(Model& model, const Batch& batch, double smoothing) {
  const at::Tensor rows = target_rows(model, batch);
  const auto loss_of = [&](const at::Tensor& target) {
    return at::cross_entropy_loss(rows, target, {}, at::Reduction::Mean, -100, smoothing);
  };
  if (!batch.other.defined()) return loss_of(batch.target);
  return batch.share * loss_of(batch.target) + (1 - batch.share) * loss_of(batch.other);
}

at::Tensor target_losses(Model& model, const Batch& batch) {
  return losses_of(target_rows(model, batch), batch.target);
}

at::Tensor Task::loss(Model& model, const Batch& batch, double smoothing) const {
  return mean_loss(model, batch, smoothing);
}

void Task::add_eval_batch(Model& model, std::size_t /*index*/, const Batch& batch,
                          EvalSums& sums) const {
  const at::Tensor rows = target_rows(model, batch);
  const at::Tensor losses = losses_of(rows, batch.target);
  const float* loss = losses.data_ptr<float>();
  for (std::int64_t i = 0; i < losses.numel(); ++i) sums.loss += static_cast<double>(loss[i]);
  sums.correct += rows.argmax(-1).eq(batch.target).sum().item<std::int64_t>();
  sums.count += losses.numel();
}

EvalSums evaluate(Communicator& comm, Model& model, const Task& task, const at::Device& device,
                  int players) {
  const c10::NoGradGuard no_grad;
  model.set_training(false);
  std::vector<EvalSums> all(static_cast<std::size_t>(std::max(players, comm.size())));
  const std::unique_ptr<BatchQueue> queue = task.make_queue();
  const auto world = static_cast<std::size_t>(comm.size());
  auto asked = static_cast<std::size_t>(comm.rank());
  for (std::size_t b = asked; b < task.n_eval_batches(); b += world) {
    for (; asked < task.n_eval_batches() && asked < b + queue->depth() * world; asked += world) {
      queue->ask_eval(asked);
    }
    task.add_eval_batch(model, b, moved_to(device, queue->take()), all[b % all.size()]);
  }
  model.set_training(true);
  const Communicator::Scope scope(comm, "evaluation");
  if (comm.size() > 1) {
    const EvalSums mine = all[static_cast<std::size_t>(comm.rank())];
    comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  }
  EvalSums total;
  for (const EvalSums& part : all) {
    total.loss += part.loss;
    total.correct += part.correct;
    total.count += part.count;
    for (std::size_t i = 0; i < total.own.size(); ++i) total.own[i] += part.own[i];
  }
  return total;
}

// pride's own tasks, one file each
TaskInfo lm_info(), fewshot_info(), cifar10_info(), imagenet_info();

namespace {

std::vector<TaskInfo>& task_rows() {
  static std::vector<TaskInfo> infos = {lm_info(), fewshot_info(), cifar10_info(), imagenet_info()};
  return infos;
}

}  // namespace

const std::vector<TaskInfo>& tasks() { return task_rows(); }

void register_task(TaskInfo info) {
  PRIDE_CHECK(std::ranges::count(task_rows(), info.name, &TaskInfo::name) == 0, "task ", info.name,
              " is registered already");
  task_rows().push_back(std::move(info));
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  return task_info(options.task).make(options);
}

const TaskInfo& task_info(const std::string& name) {
  std::string names;
  for (const TaskInfo& info : task_rows()) {
    if (info.name == name) return info;
    names += (names.empty() ? "" : ", ") + info.name;
  }
  throw InvalidArgument(concat("--task ", name, ": must be one of ", names));
}

}  // namespace pride::train
