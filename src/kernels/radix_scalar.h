// Packed numbers in plain C++: the SCALAR instruction set, and last words of tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/radix.h"

namespace pride::kernels::scalar {

// base^n modulo 2^32.
inline std::uint32_t power(std::uint32_t base, std::size_t n) {
  std::uint32_t result = 1;
  while (n-- > 0) result *= base;
  return result;
}

// One group; `planes` points at the first plane of its first word.
inline void pack_group(const std::uint64_t* planes, std::size_t n_planes, std::size_t plane_stride,
                       Radix radix, std::uint32_t* packed) {
  const std::uint64_t m = power(radix.base, radix.n_digits);
  for (std::size_t c = 0; c < 64; ++c) {
    std::uint64_t v = 0;
    for (std::size_t j = 0; j < radix.n_digits; ++j) {
      std::uint64_t digit = 0;
      for (std::size_t p = 0; p < n_planes; ++p) {
        digit |= ((planes[p * plane_stride + j] >> c) & 1) << p;
      }
      v = v * radix.base + digit;
    }
    packed[c] = static_cast<std::uint32_t>(((v << 32) + m - 1) / m);
  }
}

// Number of coordinate i of `packed`.
inline std::uint32_t digit_at(const std::uint32_t* packed, Radix radix, std::size_t i) {
  const std::size_t word = i / 64, c = i % 64;
  const std::uint32_t f = packed[64 * (word / radix.n_digits) + c];
  const std::uint32_t rest = f * power(radix.base, word % radix.n_digits);
  return static_cast<std::uint32_t>((std::uint64_t{rest} * radix.base) >> 32);
}

// Words [first, first + n_words) of `packed`.
inline void unpack_digits(const std::uint32_t* packed, Radix radix, std::size_t first,
                          std::size_t n_words, std::size_t n_planes, std::size_t plane_stride,
                          std::uint64_t* planes) {
  for (std::size_t k = 0; k < n_words; ++k) {
    for (std::size_t p = 0; p < n_planes; ++p) planes[p * plane_stride + k] = 0;
    for (std::size_t c = 0; c < 64; ++c) {
      const std::uint64_t digit = digit_at(packed, radix, 64 * (first + k) + c);
      for (std::size_t p = 0; p < n_planes; ++p) {
        planes[p * plane_stride + k] |= ((digit >> p) & 1) << c;
      }
    }
  }
}

// x[0] is coordinate `first` of `packed`.
inline void apply_packed_counts(const std::uint32_t* packed, Radix radix, std::size_t first,
                                int present, float world, Step step, std::span<float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int sum = 2 * static_cast<int>(digit_at(packed, radix, first + i)) - present;
    const float mean = static_cast<float>(sum) / world;
    x[i] = x[i] * step.decay.of(x[i], mean) - step.lr * mean;
  }
}

inline std::uint32_t max_digit(const std::uint32_t* packed, Radix radix, std::size_t first,
                               std::size_t n) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, digit_at(packed, radix, first + i));
  return most;
}

}  // namespace pride::kernels::scalar
