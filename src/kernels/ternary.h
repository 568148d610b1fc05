// Kernels of TernGrad: statistics of a tensor's gradient, stochastic ternary codes, and sums of
// codes as floats. Same promises as kernels.h: the same bits on every instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/philox_key.h"

namespace pride::kernels {

// Sum of x in double, over the sixteen partial sums of sum_squares.
double sum(std::span<const float> x) noexcept;

// Largest |x|; 0 for no coordinates. NaN is ignored.
float max_abs(std::span<const float> x) noexcept;

// t = sign(g) with probability min(|g|, limit) / scale, else 0: with u = (word >> 8) * 2^-24, the
// words of purpose 0x54470000 (kernels/philox_key.h),
// t is not 0 where u*scale < min(|g|, limit). Bit i of `plus` is 1 where t = +1, that of
// `not_minus` where t >= 0, so that their sum is t + 1.
// REQUIRES: plus.size() == not_minus.size() == words_for(g.size()). Reads 4 and writes 1/4 byte.
void ternarise(std::span<const float> g, float limit, float scale, const PhiloxKey& key,
               std::span<std::uint64_t> plus, std::span<std::uint64_t> not_minus) noexcept;

// out = scale * (float(c - offset) / float(world)), c the number whose bit p is in
// planes[p * plane_stride + word].  REQUIRES: as apply_counts.
void sums_to_floats(std::span<const std::uint64_t> planes, std::size_t n_planes,
                    std::size_t plane_stride, int offset, int world, float scale,
                    std::span<float> out) noexcept;

}  // namespace pride::kernels
