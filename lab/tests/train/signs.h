// A task of numbers for tests of the trainer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <vector>

#include "pride/train/task.h"

namespace pride::train {

inline std::atomic<int> batches_made = 0;  // by all workers, for training

// Which numbers are above `border`: 64 of them, from -31.5 to 31.5, over `scale`.
class Signs : public Task {
 public:
  explicit Signs(ModelMaker model, double border = 0, double scale = 1)
      : model_(std::move(model)), border_(border), scale_(scale) {}

  std::string name() const override { return "signs"; }
  const ModelMaker& model() const override { return model_; }
  DataFacts data() const override {
    return {"numbers", "signs-1", {{"numbers", std::int64_t{64}}}};
  }
  std::size_t n_samples() const override { return 64; }
  std::size_t n_eval_batches() const override { return 2; }
  Batch train_batch(std::span<const Draw> draws) const override {
    ++batches_made;
    std::vector<double> x;
    for (const Draw& draw : draws) x.push_back((draw.sample - 31.5) / scale_);
    return batch_of(at::tensor(x, at::kFloat));
  }
  Batch eval_batch(std::size_t index) const override {
    return batch_of(at::arange(-3.5, 4.5, at::kFloat) * (index == 0 ? 1 : -1));
  }

 private:
  Batch batch_of(const at::Tensor& x) const {
    return {x.view({-1, 1}), x.gt(border_).to(at::kLong)};
  }

  ModelMaker model_;
  double border_, scale_;
};

}  // namespace pride::train
