// lion_sign_update: blend, sign bits and momentum in one pass.
// Reads 8 and writes 4.125 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lion_sign_update.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
// Sixty-four coordinates at once; the same result as scalar::lion_word.
HWY_INLINE scalar::LionWord lion_word(const float* HWY_RESTRICT g, const Blend& blend,
                                      const SharedBits& zeros, std::size_t k,
                                      float* HWY_RESTRICT m) {
  const FloatTag d;
  const auto beta1 = hn::Set(d, blend.beta1), beta1c = hn::Set(d, blend.one_minus_beta1);
  const auto beta2 = hn::Set(d, blend.beta2), beta2c = hn::Set(d, blend.one_minus_beta2);
  const auto largest = hn::Set(d, hwy::HighestValue<float>());
  prefetch_next_page(g, 64 * sizeof(float));
  prefetch_next_page(m, 64 * sizeof(float));
  scalar::LionWord out;
  std::uint64_t zero_bits = 0;
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto vm = hn::LoadU(d, m + i);
    const auto vg = hn::LoadU(d, g + i);
    const auto u = hn::Add(hn::Mul(beta1, vm), hn::Mul(beta1c, vg));
    auto next = hn::Add(hn::Mul(beta2, vm), hn::Mul(beta2c, vg));
    auto positive = hn::Gt(u, hn::Zero(d));
    auto zero = hn::Eq(u, hn::Zero(d));
    // a comparison with NaN is false, so one test covers NaN and Inf
    const auto finite = hn::And(hn::Le(hn::Abs(u), largest), hn::Le(hn::Abs(next), largest));
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) {
      out.bad |= mask_bits(d, hn::Not(finite)) << i;
      next = hn::IfThenElse(finite, next, vm);
      positive = hn::And(positive, finite);
      zero = hn::And(zero, finite);
    }
    hn::StoreU(next, d, m + i);
    out.bits |= mask_bits(d, positive) << i;
    zero_bits |= mask_bits(d, zero) << i;
  }
  if (HWY_UNLIKELY(zero_bits != 0)) out.bits |= zero_bits & zeros.at(k);
  return out;
}

// The same for n < 64 coordinates at the end of a tensor, padded with zeros.
scalar::LionWord last_lion_word(const float* g, std::size_t n, const Blend& blend,
                                const SharedBits& zeros, std::size_t k, float* m) {
  alignas(64) float whole_g[64] = {}, whole_m[64] = {};
  std::copy_n(g, n, whole_g);
  std::copy_n(m, n, whole_m);
  scalar::LionWord out = lion_word(whole_g, blend, zeros, k, whole_m);
  std::copy_n(whole_m, n, m);
  out.bits &= (std::uint64_t{1} << n) - 1;
  return out;
}
#endif

std::size_t lion(std::span<const float> g, const Blend& blend, const SharedBits& zeros,
                 std::span<float> m, std::span<std::uint64_t> bits) {
  std::size_t first_bad = kAllFinite;
  for (std::size_t k = 0; k < bits.size(); ++k) {
    const std::size_t at = k * 64, n = std::min<std::size_t>(64, g.size() - at);
#if PRIDE_SIMD
    const auto word = HWY_LIKELY(n == 64)
                          ? lion_word(g.data() + at, blend, zeros, k, m.data() + at)
                          : last_lion_word(g.data() + at, n, blend, zeros, k, m.data() + at);
#else
    const auto word = scalar::lion_word(g.data() + at, n, blend, zeros.at(k), m.data() + at);
#endif
    if (HWY_UNLIKELY(word.bad != 0 && first_bad == kAllFinite)) {
      first_bad = at + static_cast<std::size_t>(std::countr_zero(word.bad));
    }
    bits[k] = word.bits;
  }
  return first_bad;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(lion);

std::size_t lion_sign_update(std::span<const float> g, const Blend& blend, const SharedBits& zeros,
                             std::span<float> m, std::span<std::uint64_t> bits) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(lion)(g, blend, zeros, m, bits);
}

void LionSigns::run() const noexcept {
  for_both(g, m, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    const std::size_t bad = lion_sign_update(gradient, blend, zeros.from(at), part,
                                             bits.subspan(at / 64, words_for(part.size())));
    if (bad != kAllFinite) fault.note();
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
