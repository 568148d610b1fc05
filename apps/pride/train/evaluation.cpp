// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation.h"

#include <ATen/ATen.h>

#include <vector>

namespace pride::app {
namespace {

// one row of float32 for each target, whatever the model calculates in
at::Tensor rows_of(const at::Tensor& logits) {
  return logits.view({-1, logits.size(-1)}).to(at::kFloat);
}

void add_batch(Model& model, const Batch& batch, EvalSums& sums) {
  const at::Tensor rows = rows_of(model.logits(batch.input));
  const at::Tensor losses =
      at::cross_entropy_loss(rows, batch.target, {}, at::Reduction::None).cpu().contiguous();
  const float* loss = losses.data_ptr<float>();
  for (std::int64_t i = 0; i < losses.numel(); ++i) sums.loss += static_cast<double>(loss[i]);
  sums.correct += rows.argmax(-1).eq(batch.target).sum().item<std::int64_t>();
  sums.count += losses.numel();
}

}  // namespace

at::Tensor mean_loss(Model& model, const Batch& batch) {
  return at::cross_entropy_loss(rows_of(model.logits(batch.input)), batch.target);
}

EvalSums evaluate(Communicator& comm, Model& model, const Task& task, const at::Device& device) {
  const at::NoGradGuard no_grad;
  EvalSums mine;
  for (auto b = static_cast<std::size_t>(comm.rank()); b < task.n_eval_batches();
       b += static_cast<std::size_t>(comm.size())) {
    const Batch batch = task.eval_batch(b);
    add_batch(model, {batch.input.to(device), batch.target.to(device)}, mine);
  }
  std::vector<EvalSums> all(static_cast<std::size_t>(comm.size()));
  const Communicator::Scope scope(comm, "evaluation");
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  EvalSums total;
  for (const EvalSums& part : all) {
    total.loss += part.loss;
    total.correct += part.correct;
    total.count += part.count;
  }
  return total;
}

}  // namespace pride::app
