// The memory of tensors. It is the caller's; pride reads and writes it in place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pride/bf16.h"
#include "pride/float16.h"

namespace pride {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16 };
const char* name_of(DType dtype) noexcept;  // "float32"

// Bytes of one value.
constexpr std::size_t size_of(DType dtype) noexcept { return dtype == DType::kFloat32 ? 4 : 2; }

// Types that convert to a span of T.
template <typename From, typename T>
concept SpanOf = std::convertible_to<From, std::span<T>>;

// The n values of one tensor, in row-major order: on the host, or on the optimizer's device.
struct Tensor {
  void* data = nullptr;
  std::size_t n = 0;
  DType dtype = DType::kFloat32;

  Tensor() = default;
  Tensor(void* at, std::size_t size, DType type) : data(at), n(size), dtype(type) {}
  Tensor(SpanOf<float> auto&& v) : Tensor(v.data(), v.size(), DType::kFloat32) {}
  Tensor(SpanOf<BFloat16> auto&& v) : Tensor(v.data(), v.size(), DType::kBFloat16) {}
  Tensor(SpanOf<Float16> auto&& v) : Tensor(v.data(), v.size(), DType::kFloat16) {}
};

// The same, read-only.
struct ConstTensor {
  const void* data = nullptr;
  std::size_t n = 0;
  DType dtype = DType::kFloat32;

  ConstTensor() = default;
  ConstTensor(const void* at, std::size_t size, DType type) : data(at), n(size), dtype(type) {}
  ConstTensor(const SpanOf<const float> auto& v)
      : ConstTensor(v.data(), v.size(), DType::kFloat32) {}
  ConstTensor(const SpanOf<const BFloat16> auto& v)
      : ConstTensor(v.data(), v.size(), DType::kBFloat16) {}
  ConstTensor(const SpanOf<const Float16> auto& v)
      : ConstTensor(v.data(), v.size(), DType::kFloat16) {}
};

// Parameters of a layout: one flat buffer of (flat_size) floats, or each tensor by itself, in the
// layout's order. Both are views: the memory is the caller's.
class Parameters {
 public:
  Parameters(SpanOf<float> auto&& flat) : flat_(flat), is_flat_(true) {}
  Parameters(const SpanOf<const Tensor> auto& each) : each_(each) {}

  bool is_flat() const noexcept { return is_flat_; }
  std::span<float> flat() const noexcept { return flat_; }
  std::span<const Tensor> each() const noexcept { return each_; }

 private:
  std::span<float> flat_;
  std::span<const Tensor> each_;
  bool is_flat_ = false;
};

// Gradients of a layout, in the same two forms; a flat buffer may be bfloat16 or float16. A tensor
// whose data is null has no gradient.
class Gradients {
 public:
  Gradients(const SpanOf<const float> auto& flat) : flat_(flat), is_flat_(true) {}
  Gradients(const SpanOf<const BFloat16> auto& flat) : flat_(flat), is_flat_(true) {}
  Gradients(const SpanOf<const Float16> auto& flat) : flat_(flat), is_flat_(true) {}
  Gradients(const SpanOf<const ConstTensor> auto& each) : each_(each) {}

  bool is_flat() const noexcept { return is_flat_; }
  const ConstTensor& flat() const noexcept { return flat_; }
  std::span<const ConstTensor> each() const noexcept { return each_; }

 private:
  ConstTensor flat_;
  std::span<const ConstTensor> each_;
  bool is_flat_ = false;
};

}  // namespace pride
