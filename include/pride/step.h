// What a step is made of: views of the flat buffers, the step's scalars, who takes part.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pride {

enum class DType : std::uint8_t { kFloat32 };
enum class Device : std::uint8_t { kHost };

// The whole flat buffer of parameters or gradients; methods index it by flat coordinate.
struct View {
  float* data = nullptr;
  std::size_t n = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kHost;

  std::span<float> f32(std::size_t begin, std::size_t end) const {
    return {data + begin, end - begin};
  }
};
struct ConstView {
  const float* data = nullptr;
  std::size_t n = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kHost;

  std::span<const float> f32(std::size_t begin, std::size_t end) const {
    return {data + begin, end - begin};
  }
};

// Scalars of one group at one step, rounded to float once. Their bits are in every frame's check.
struct StepScalars {
  float lr = 0;
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float eps = 0;
  float adam_step = 0;        // lr / (1 - beta1^t), t = step + 1
  float adam_sqrt_bias2 = 1;  // sqrt(1 - beta2^t)
};

// What does not change within a step.
struct StepContext {
  std::int64_t step = 0;  // 0 for the first
  int rank = 0, world = 1;
  std::uint64_t seed = 0;
  std::span<const StepScalars> groups;
  std::uint64_t scalars_digest = 0;
  std::span<const char> absent;  // by tensor: 1 if it has no gradient on this rank

  bool is_absent(std::size_t tensor) const noexcept { return absent[tensor] != 0; }
};

}  // namespace pride
