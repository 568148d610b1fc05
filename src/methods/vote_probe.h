// VoteProbe: error of votes against the sign of the true mean, measured on sampled coordinates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/level_kernels.h"
#include "kernels/levels.h"
#include "methods/method.h"
#include "pride/diagnostics.h"
#include "pride/layout.h"
#include "routes/protocol.h"

namespace pride::methods {

// One sampled coordinate on one rank.
struct Sample {
  float u = 0, m = 0;
  std::int8_t q = 0;  // kNoLevel: the tensor is unused there
};

class VoteProbe {
 public:
  VoteProbe(const Layout& layout, int world);

  // The bucket's samples, from every rank to every other; empty if it has none.
  std::optional<Part> part(const Bucket& bucket, int voters) const;

  // This rank's samples: first its blends, before the step changes its momentum, then the updated
  // momenta and levels. `e`: the quantisation error of earlier steps, or empty.
  void sample_blends(const Bucket& bucket, const StepContext& ctx, GradientView grad,
                     std::span<const float> m, std::span<const float> e, Wire& wire) const;
  using SentLevel = std::function<int(std::size_t coord)>;
  void sample_results(const Bucket& bucket, const StepContext& ctx, std::span<const float> m,
                      const SentLevel& sent, Wire& wire) const;

  // The same of tensors on a device; `sent` gives the levels of a piece, or signs.
  using SentLines = std::function<LevelKernels::Lines(std::size_t shard, const Piece& piece)>;
  void blends_on_device(Space& space, const Bucket& bucket, const StepContext& ctx,
                        GradientView grad, std::span<const float> m, std::span<const float> e,
                        Wire& wire) const;
  void results_on_device(Space& space, const Bucket& bucket, const StepContext& ctx,
                         std::span<const float> m, const SentLines& sent, Wire& wire) const;

  // The result of the part is the frames of all ranks.
  static void serve(const Ballots& up, Reply& reply);

  // Keeps the samples of all ranks for the step.
  void keep(const Bucket& bucket, const Wire& wire);

  // By tensor, once the samples of all buckets are kept.
  std::vector<TensorDiagnostics> evaluate() const;

 private:
  struct Tensor {
    std::size_t offset, n, stride, first, count;  // samples [first, first + count)
  };
  // Sampled flat coordinates, ascending and evenly spread: one in a thousand of a tensor, at least
  // 16 and at most 256. On N >= 32 ranks these numbers are N/16 times smaller, but at least 4. They
  // do not depend on the cut into buckets.
  std::vector<std::size_t> samples_in(const Bucket& bucket) const;
  template <typename Body>
  void for_pieces(const Bucket& bucket, const Body& body) const;
  std::size_t tensor_at(std::size_t coord) const;
  std::span<const Sample> of_rank(const Tensor& t, int rank) const;

  Layout layout_;
  std::vector<Tensor> tensors_;
  int world_;
  std::size_t n_samples_ = 0;
  std::vector<Sample> samples_;  // rank after rank
};

}  // namespace pride::methods
