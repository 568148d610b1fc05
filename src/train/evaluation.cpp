// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation.h"

#include <ATen/ATen.h>

#include <vector>

namespace pride::train {
namespace {

// one row of float32 for each target, whatever the model calculates in
at::Tensor target_rows(Model& model, const Batch& batch) {
  if (batch.places.defined()) return model.logits_at(batch.input, batch.places).to(at::kFloat);
  const at::Tensor logits = model.logits(batch.input);
  return logits.view({-1, logits.size(-1)}).to(at::kFloat);
}

}  // namespace

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
  return at::cross_entropy_loss(target_rows(model, batch), batch.target, {}, at::Reduction::None)
      .cpu()
      .contiguous();
}

at::Tensor Task::loss(Model& model, const Batch& batch, double smoothing) const {
  return mean_loss(model, batch, smoothing);
}

void Task::add_eval_batch(Model& model, std::size_t /*index*/, const Batch& batch,
                          EvalSums& sums) const {
  const at::Tensor rows = target_rows(model, batch);
  const at::Tensor losses =
      at::cross_entropy_loss(rows, batch.target, {}, at::Reduction::None).cpu().contiguous();
  const float* loss = losses.data_ptr<float>();
  for (std::int64_t i = 0; i < losses.numel(); ++i) sums.loss += static_cast<double>(loss[i]);
  sums.correct += rows.argmax(-1).eq(batch.target).sum().item<std::int64_t>();
  sums.count += losses.numel();
}

EvalSums evaluate(Communicator& comm, Model& model, const Task& task, const at::Device& device) {
  const at::NoGradGuard no_grad;
  model.set_training(false);
  EvalSums mine;
  const std::unique_ptr<BatchQueue> queue = task.make_queue();
  const auto world = static_cast<std::size_t>(comm.size());
  auto asked = static_cast<std::size_t>(comm.rank());
  for (std::size_t b = asked; b < task.n_eval_batches(); b += world) {
    for (; asked < task.n_eval_batches() && asked < b + queue->depth() * world; asked += world) {
      queue->ask_eval(asked);
    }
    task.add_eval_batch(model, b, moved_to(device, queue->take()), mine);
  }
  model.set_training(true);
  std::vector<EvalSums> all(static_cast<std::size_t>(comm.size()));
  const Communicator::Scope scope(comm, "evaluation");
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  EvalSums total;
  for (const EvalSums& part : all) {
    total.loss += part.loss;
    total.correct += part.correct;
    total.count += part.count;
    for (std::size_t i = 0; i < total.own.size(); ++i) total.own[i] += part.own[i];
  }
  return total;
}

}  // namespace pride::train
