// pack_signs and mean_of_signs: floats to packed signs, and the packed signs of all ranks to their
// mean. Bytes per coordinate: 4.125, and 8 plus a bit per row.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/scaled_signs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/isa.h"
#include "kernels/scaled_signs_scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scaled_signs.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
HWY_INLINE std::uint64_t signs_of_word(const float* p, const SharedBits& zeros, std::size_t k) {
  const FloatTag d;
  const auto nought = hn::Zero(d);
  std::uint64_t bits = 0, zero_bits = 0;
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, p + i);
    bits |= mask_bits(d, hn::Gt(v, nought)) << i;
    zero_bits |= mask_bits(d, hn::Eq(v, nought)) << i;
  }
  if (HWY_UNLIKELY(zero_bits != 0)) bits |= zero_bits & zeros.at(k);
  return bits;
}

// All sums of a word stay in registers during the loop over rows.
HWY_INLINE void mean_of_word(std::span<const ScaledRow> rows, std::size_t k, float divisor,
                             const float* e, float* out) {
  const FloatTag d;
  constexpr std::size_t kVectors = 64 / hn::MaxLanes(FloatTag());
  FloatVec sums[kVectors];
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto plus = hn::Set(d, rows[r].scale), minus = hn::Set(d, -rows[r].scale);
    const std::uint64_t word = rows[r].bits[k];
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto term = hn::IfThenElse(mask_of(d, word >> (v * hn::Lanes(d))), plus, minus);
      sums[v] = r == 0 ? term : hn::Add(sums[v], term);
    }
  }
  const auto n = hn::Set(d, divisor);
  for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t i = v * hn::Lanes(d);
    hn::StoreU(hn::Add(hn::Div(sums[v], n), hn::LoadU(d, e + i)), d, out + i);
  }
}
#endif

void signs_of(std::span<const float> p, const SharedBits& zeros, std::span<std::uint64_t> bits) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= p.size(); at += 64) {
    bits[at / 64] = signs_of_word(p.data() + at, zeros, at / 64);
  }
#endif
  for (; at < p.size(); at += 64) {
    const std::uint64_t hash = zeros.at(at / 64);
    const std::size_t n = std::min<std::size_t>(64, p.size() - at);
    bits[at / 64] = scalar::pack_signs_word(p.data() + at, n, hash);
  }
}

void mean_of(std::span<const ScaledRow> rows, float divisor, std::span<const float> e,
             std::span<float> out) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= out.size(); at += 64) {
    mean_of_word(rows, at / 64, divisor, e.data() + at, out.data() + at);
  }
#endif
  for (; at < out.size(); at += 64) {
    const std::size_t n = std::min<std::size_t>(64, out.size() - at);
    scalar::mean_of_signs_word(rows, at / 64, divisor, e.data() + at, out.data() + at, n);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(signs_of);
HWY_EXPORT(mean_of);

void pack_signs(std::span<const float> p, const SharedBits& zeros,
                std::span<std::uint64_t> bits) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(signs_of)(p, zeros, bits);
}

float compress(std::span<const float> p, Norm norm, const SharedBits& zeros,
               std::span<std::uint64_t> bits) noexcept {
  pack_signs(p, zeros, bits);
  const auto n = static_cast<double>(p.size());
  const auto scale =
      static_cast<float>(norm == Norm::kMeanAbs ? sum_abs(p) / n : std::sqrt(sum_squares(p) / n));
  // processors make NaNs of different bits, and frames with the scale are compared
  return std::isnan(scale) ? std::numeric_limits<float>::quiet_NaN() : scale;
}

void mean_of_signs(std::span<const ScaledRow> rows, int divisor, std::span<const float> e,
                   std::span<float> out) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(mean_of)(rows, static_cast<float>(divisor), e, out);
}

void PackSigns::run() const noexcept {
  if (!is_faulty(guard)) return pack_signs(p, zeros, bits);
  std::ranges::fill(bits, 0);
  fault.note();
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
