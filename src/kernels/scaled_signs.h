// Kernels of the methods that send scaled signs with error feedback. Packed bits, spans and the
// rules of arithmetic are those of kernels.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace pride::kernels {

// A scale covers the part of one tensor in one aligned range of this many flat coordinates.
inline constexpr std::size_t kScaleBlock = 4096;

// The scales of a span: one for each range of kScaleBlock coordinates that it overlaps. `lead`
// coordinates of the first range lie before the span. REQUIRES: `lead` is a multiple of 64.
template <typename Float>
struct BlockScales {
  std::span<Float> of;
  std::size_t lead = 0;

  // Calls body(k, begin, n) for the span's part of each range, ascending.
  void for_blocks(std::size_t size, auto&& body) const {
    std::size_t begin = 0;
    for (std::size_t k = 0; k < of.size(); ++k) {
      const std::size_t end = std::min(size, (k + 1) * kScaleBlock - lead);
      body(k, begin, end - begin);
      begin = end;
    }
  }
};

// The scale of a block: the mean of |p|, or the root of the mean of p^2.
enum class Norm { kMeanAbs, kRms };

// Input of the compressor: p = rate*(keep*m + take*g) + e, with momentum m, gradient g, error e.
struct Feedback {
  float keep = 0, take = 1, rate = 1;
};

// The packed signs of one rank, and the magnitude that they stand for.
struct ScaledRow {
  const std::uint64_t* bits = nullptr;
  float scale = 0;
};

// p = rate*(keep*m + take*g) + e.  REQUIRES: all of one size.
// Reads 12 and writes 4 bytes per coordinate.
void feedback(std::span<const float> g, std::span<const float> m, std::span<const float> e,
              const Feedback& f, std::span<float> p) noexcept;

// bit = p > 0, or the hash bit where p == 0 (either zero); 0 where p is NaN.
// REQUIRES: bits.size() == words_for(p.size()).  Reads 4 and writes 0.125 bytes per coordinate.
void pack_signs(std::span<const float> p, const SharedBits& zeros,
                std::span<std::uint64_t> bits) noexcept;

// Sum of |x| in double, in the order of sum_squares: the same bits on every instruction set. NaN or
// Inf if x has one.
double sum_abs(std::span<const float> x) noexcept;

// C(p) = scale * sign(p): pack_signs, and the scale, which is not finite if p is not. A NaN among
// the p makes it the NaN of bits 0x7FC00000, whatever the NaN and the processor.
float compress(std::span<const float> p, Norm norm, const SharedBits& zeros,
               std::span<std::uint64_t> bits) noexcept;

// u = keep*m + take*g;  e = (rate*u + e) - s*scale, s = +1 or -1 by the bit;  m = u.
// Reads 12.125 and writes 8 bytes per coordinate.
void keep_feedback(std::span<const float> g, const Feedback& f, std::span<const std::uint64_t> bits,
                   float scale, std::span<float> m, std::span<float> e) noexcept;

// out = (s0*scale0 + s1*scale1 + ... in the order of the rows) / float(divisor) + e.
// REQUIRES: at least one row, each of words_for(out.size()) words; e.size() == out.size().
// Reads 4 bytes and one bit per row, writes 4 bytes per coordinate.
void mean_of_signs(std::span<const ScaledRow> rows, int divisor, std::span<const float> e,
                   std::span<float> out) noexcept;

// e = p - s*scale.  Reads 4.125 and writes 4 bytes per coordinate.
void keep_remainder(std::span<const float> p, std::span<const std::uint64_t> bits, float scale,
                    std::span<float> e) noexcept;

// m = s*scale;  x = x*decay - (step_size*m) / (sqrt(v)/sqrt_bias2 + eps), but x = x*decay where v
// == 0.  Reads only step_size, sqrt_bias2, eps and decay of `a`.
// Reads 8.125 and writes 8 bytes per coordinate.
void adam_signs(std::span<const std::uint64_t> bits, float scale, const AdamScalars& a,
                std::span<const float> v, std::span<float> m, std::span<float> x) noexcept;

}  // namespace pride::kernels
