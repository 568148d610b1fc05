// Product of magnitudes for sum_log2, in plain C++: the tails of the vector loop, and the SCALAR
// instruction set. Same operations in the same order as the vector code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace pride::kernels {

constexpr double kZeroOffset = 1e-12;
constexpr std::uint64_t kFraction = (std::uint64_t{1} << 52) - 1;
constexpr std::uint64_t kOne = std::uint64_t{1023} << 52;  // the bits of 1.0
constexpr std::size_t kLogBlock = 1024;                    // coordinates between two normalisations

// Sixteen partial products: mantissas, and sums of biased exponents.
struct Product {
  std::array<double, 16> mantissas;
  std::array<std::uint64_t, 16> exponents;
};

namespace scalar {

// Multiplies by |x| + 1e-12. A block multiplies 64 mantissas below 2: no product overflows.
// REQUIRES: x.size() <= kLogBlock; mantissas below 2.
inline void multiply_by(std::span<const float> x, Product& product) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(std::abs(double{x[i]}) + kZeroOffset);
    product.exponents[i % 16] += bits >> 52;
    product.mantissas[i % 16] *= std::bit_cast<double>((bits & kFraction) | kOne);
  }
}

}  // namespace scalar
}  // namespace pride::kernels
