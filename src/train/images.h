// What the tasks of images have in common: which images an evaluation takes, and its metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "pride/train/task.h"

namespace pride::train {

// `n` images in batches of 250, spread evenly over them if --eval-batches leaves some out.
class EvalImages {
 public:
  EvalImages(std::size_t n, const TrainOptions& options) : n_(n) {
    const std::size_t all = (n + kBatch - 1) / kBatch;
    const auto wanted = static_cast<std::size_t>(options.eval_batches.value_or(0));
    n_batches_ = wanted == 0 ? all : std::min(all, wanted);
  }

  std::size_t n_batches() const noexcept { return n_batches_; }
  std::size_t rows(std::size_t batch) const noexcept {
    return std::min(kBatch, chosen() - batch * kBatch);
  }
  std::size_t image(std::size_t batch, std::size_t row) const noexcept {
    return (batch * kBatch + row) * n_ / chosen();
  }

 private:
  static constexpr std::size_t kBatch = 250;

  std::size_t chosen() const noexcept { return std::min(n_batches_ * kBatch, n_); }

  std::size_t n_, n_batches_ = 0;
};

// Images of one size, their labels zero.
Batch empty_images(std::size_t n, std::int64_t channels, std::int64_t side);

inline Facts image_metrics(const EvalSums& sums) {
  const auto count = static_cast<double>(sums.count);
  return {{"loss", sums.loss / count},
          {"accuracy", static_cast<double>(sums.correct) / count},
          {"images", sums.count}};
}

}  // namespace pride::train
