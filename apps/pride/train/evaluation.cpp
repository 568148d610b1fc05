// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation.h"

#include <ATen/ATen.h>

#include <vector>

namespace pride::app {
namespace {

// one row of float32 for each target, whatever the model calculates in
at::Tensor target_rows(Model& model, const Batch& batch) {
  if (batch.places.defined()) return model.logits_at(batch.input, batch.places).to(at::kFloat);
  const at::Tensor logits = model.logits(batch.input);
  return logits.view({-1, logits.size(-1)}).to(at::kFloat);
}

}  // namespace

Batch moved_to(const at::Device& device, const Batch& batch) {
  return {batch.input.to(device), batch.target.to(device),
          batch.places.defined() ? batch.places.to(device) : at::Tensor()};
}

at::Tensor mean_loss(Model& model, const Batch& batch) {
  return at::cross_entropy_loss(target_rows(model, batch), batch.target);
}

at::Tensor target_losses(Model& model, const Batch& batch) {
  return at::cross_entropy_loss(target_rows(model, batch), batch.target, {}, at::Reduction::None)
      .cpu()
      .contiguous();
}

void Task::add_eval_batch(Model& model, std::size_t index, const at::Device& device,
                          EvalSums& sums) const {
  const Batch batch = moved_to(device, eval_batch(index));
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
  EvalSums mine;
  for (auto b = static_cast<std::size_t>(comm.rank()); b < task.n_eval_batches();
       b += static_cast<std::size_t>(comm.size())) {
    task.add_eval_batch(model, b, device, mine);
  }
  std::vector<EvalSums> all(static_cast<std::size_t>(comm.size()));
  const Communicator::Scope scope(comm, "evaluation");
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  EvalSums total;
  for (const EvalSums& part : all) {
    total.loss += part.loss;
    total.correct += part.correct;
    total.count += part.count;
    total.choices += part.choices;
  }
  return total;
}

}  // namespace pride::app
