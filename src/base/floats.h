// Floats: a view of float32 values that kernels read and change. They are stored as float32, as
// bfloat16 with the lower 16 bits in a second array, or as bfloat16 alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "pride/tensors.h"

namespace pride {

// Splits float32 values x into halves. `upper` is x as bfloat16, rounded to nearest, ties away
// from zero: with ties to even 65537 values of x would share an even `upper`, too many for 16 bits.
// `lower` is the lower 16 bits of x; as a signed number it is the distance of x from `upper`.
// Exact, except that a NaN may become another NaN. REQUIRES: equal sizes.
void split(std::span<const float> x, std::uint16_t* upper, std::uint16_t* lower) noexcept;
// The inverse of split(). If `upper` was changed since, x is within half a bfloat16 place of the
// new value and rounds to it. If that would cross zero or infinity, x is the new value itself.
void join(const std::uint16_t* upper, const std::uint16_t* lower, std::span<float> x) noexcept;

// A view of n values; with const float it is read-only. If there is no `lower`, each write rounds
// to bfloat16, ties to even.
template <typename Float>
struct BasicFloats {
  using Half = std::conditional_t<std::is_const_v<Float>, const std::uint16_t, std::uint16_t>;
  static constexpr std::size_t kBlock = 4096;  // joined at a time, in the L1 cache

  Float* data = nullptr;
  Half *upper = nullptr, *lower = nullptr;  // instead of `data`; `lower` may be null
  std::size_t n = 0;

  BasicFloats() = default;
  BasicFloats(Float* at, std::size_t size) : data(at), n(size) {}
  BasicFloats(Half* high, Half* low, std::size_t size) : upper(high), lower(low), n(size) {}
  BasicFloats(const SpanOf<Float> auto& s) : BasicFloats(std::span<Float>(s).data(), s.size()) {}
  operator BasicFloats<const float>() const {
    return halved() ? BasicFloats<const float>(upper, lower, n) : BasicFloats<const float>(data, n);
  }

  static BasicFloats of(float* at, DType dtype, std::size_t size) {
    if (dtype == DType::kFloat32) return {at, size};
    return {reinterpret_cast<std::uint16_t*>(at), nullptr, size};
  }

  bool halved() const noexcept { return upper != nullptr; }
  std::size_t size() const noexcept { return n; }
  BasicFloats subspan(std::size_t at, std::size_t size) const {
    if (!halved()) return {data + at, size};
    return {upper + at, lower == nullptr ? nullptr : lower + at, size};
  }
  BasicFloats subspan(std::size_t at) const { return subspan(at, n - at); }
  BasicFloats first(std::size_t size) const { return subspan(0, size); }

  std::span<Float> span() const { return {data, n}; }  // REQUIRES: not halved()

  // On the host: the values in place, or joined into `room`.  REQUIRES: room.size() >= n.
  std::span<const float> read(std::span<float> room) const {
    if (!halved()) return {data, n};
    load(0, room.first(n));
    return room.first(n);
  }
  // For halves: reads or writes values [at, at + x.size()).
  void load(std::size_t at, std::span<float> x) const {
    if (lower != nullptr) return join(upper + at, lower + at, x);
    to_float(std::span(reinterpret_cast<const BFloat16*>(upper) + at, x.size()), x);
  }
  void store(std::size_t at, std::span<const float> x) const {
    if (lower != nullptr) return split(x, upper + at, lower + at);
    to_bf16(x, std::span(reinterpret_cast<BFloat16*>(upper) + at, x.size()));
  }
  // On the host: calls body(at, x) for ascending blocks of kBlock values, or once for all, and
  // stores what body() changed.
  void for_blocks(auto&& body) const {
    if (!halved()) return body(std::size_t{0}, std::span<Float>(data, n));
    alignas(64) float block[kBlock];
    for (std::size_t at = 0; at < n; at += kBlock) {
      const std::span part(block, std::min(kBlock, n - at));
      load(at, part);
      body(at, std::span<Float>(part));
      if constexpr (!std::is_const_v<Float>) store(at, part);
    }
  }
};
using Floats = BasicFloats<float>;
using ConstFloats = BasicFloats<const float>;

}  // namespace pride
