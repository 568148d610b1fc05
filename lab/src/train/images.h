// The common part of image tasks: the images of an evaluation, its metrics, CIFAR-10's images as
// floats with the standard crop and flip, and MixUp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pride/random_bits.h"
#include "pride/train/sampler.h"
#include "pride/train/task.h"
#include "train/data/cifar10.h"

namespace pride::train {

// `n` images in batches of 250. If --eval-batches leaves some out, the others are spread evenly.
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

// A batch of images of one size; images and labels are not set.
Batch empty_images(std::size_t n, std::int64_t channels, std::int64_t side);

inline Facts image_metrics(const EvalSums& sums) {
  const auto count = static_cast<double>(sums.count);
  return {{"loss", sums.loss / count},
          {"accuracy", static_cast<double>(sums.correct) / count},
          {"images", sums.count}};
}

// Floats of one image: channels * height * width.
std::size_t image_floats(const ImageSet& set);

// Channel-wise (pixel / 255 - mean) / deviation with CIFAR-10's training mean and deviation, after
// a random crop of the image padded with 4 black pixels on each side, and a flip left to right with
// probability 1/2; drawn from (seed, sample, epoch) alone. REQUIRES: three channels; out.size() ==
// image_floats(set).
void augment(const ImageSet& set, const Draw& draw, std::uint64_t seed, std::span<float> out);

// MixUp: a batch is mixed with itself in another order (Zhang et al. 2018, arXiv:1710.09412). As in
// timm, the order is reversed and the batch has one share.
// Row i becomes share * row i + (1 - share) * row n - 1 - i, share drawn from Beta(alpha, alpha);
// stored in `other` and `share` of the batch. REQUIRES: alpha > 0; images on the host.
void mix_up(double alpha, PhiloxStream bits, Batch& batch);

}  // namespace pride::train
