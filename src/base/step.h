// Inputs of a step: views of the flat buffers, the step's scalars, the participating ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

namespace pride {

enum class DType : std::uint8_t { kFloat32 };
enum class Device : std::uint8_t { kHost };

// Gradients that lie apart, tensor by tensor.
struct TensorPointers {
  std::vector<std::size_t> offsets;  // of all tensors in the layout, ascending
  std::vector<const float*> data;    // null: not given

  const float* at(std::size_t coordinate) const {
    const auto next = std::ranges::upper_bound(offsets, coordinate);
    const auto tensor = static_cast<std::size_t>(next - offsets.begin()) - 1;
    return data[tensor] + (coordinate - offsets[tensor]);
  }
};

// The whole flat buffer of parameters or gradients; methods index it by flat coordinate. Gradients
// may lie apart if Protocol::gradient_by_piece; then a range is one of one tensor.
template <typename Float>
struct FlatView {
  Float* data = nullptr;
  std::size_t n = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kHost;
  const TensorPointers* apart = nullptr;

  std::span<Float> f32(std::size_t begin, std::size_t end) const {
    if constexpr (std::is_const_v<Float>) {
      if (apart != nullptr) return {apart->at(begin), end - begin};
    }
    return {data + begin, end - begin};
  }
};
using View = FlatView<float>;
using ConstView = FlatView<const float>;

// Scalars of one group at one step, rounded to float once. Their bits are in every frame's check.
struct StepScalars {
  float lr = 0;
  float decay = 1;         // 1 - lr * weight_decay
  float weight_decay = 0;  // for rates other than lr
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float eps = 0;
  float adam_step = 0;        // lr / (1 - beta1^t), t = step + 1
  float adam_sqrt_bias2 = 1;  // sqrt(1 - beta2^t)
};

// A server's view of a step.
struct Round {
  std::int64_t step = 0;  // 0 for the first
  int voters = 1;         // ranks
  std::uint64_t seed = 0;
  std::uint64_t scalars_digest = 0;
  std::span<const int> weights = {};  // votes of each rank; empty: one
  bool central = false;  // by a coordinator: one shard a bucket, whose server is no worker

  int weight_of(int rank) const {
    return weights.empty() ? 1 : weights[static_cast<std::size_t>(rank)];
  }
  // Votes of all ranks.
  int votes() const {
    return weights.empty() ? voters : std::accumulate(weights.begin(), weights.end(), 0);
  }
};

// A worker's view of a step; constant within the step.
struct StepContext : Round {
  int rank = 0;
  std::span<const StepScalars> groups;
  std::span<const char> unused;  // by tensor: 1 if it has no gradient on this rank
  float grad_scale = 1;          // global-norm clipping: factor of the mean gradient, at apply

  bool is_unused(std::size_t tensor) const noexcept { return unused[tensor] != 0; }
  const StepScalars& scalars_of(const auto& piece) const {
    return groups[static_cast<std::size_t>(piece.group)];
  }
};

}  // namespace pride
