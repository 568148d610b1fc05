// adam_signs: Adam's step with a frozen second moment and scaled signs for the first.
// Reads 8.125 and writes 8 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/scaled_signs_scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam_signs.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
HWY_INLINE void adam_word(std::uint64_t word, float scale, const AdamScalars& a,
                          const float* HWY_RESTRICT v, float* HWY_RESTRICT m,
                          float* HWY_RESTRICT x) {
  const FloatTag d;
  prefetch_next_page(v, 64 * sizeof(float));
  prefetch_next_page(m, 64 * sizeof(float));
  prefetch_next_page(x, 64 * sizeof(float));
  const auto plus = hn::Set(d, scale), minus = hn::Set(d, -scale);
  const auto step_size = hn::Set(d, a.step_size), sqrt_bias2 = hn::Set(d, a.sqrt_bias2);
  const auto eps = hn::Set(d, a.eps), decay = hn::Set(d, a.decay);
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto vm = hn::IfThenElse(mask_of(d, word >> i), plus, minus);
    const auto vv = hn::LoadU(d, v + i);
    const auto below = hn::Add(hn::Div(hn::Sqrt(vv), sqrt_bias2), eps);
    const auto change = hn::Div(hn::Mul(step_size, vm), below);
    const auto decayed = hn::Mul(hn::LoadU(d, x + i), decay);
    const auto still = hn::Eq(vv, hn::Zero(d));
    hn::StoreU(vm, d, m + i);
    hn::StoreU(hn::IfThenElse(still, decayed, hn::Sub(decayed, change)), d, x + i);
  }
}
#endif

void adam_step_of_signs(std::span<const std::uint64_t> bits, float scale, const AdamScalars& a,
                        std::span<const float> v, std::span<float> m, std::span<float> x) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= x.size(); at += 64) {
    adam_word(bits[at / 64], scale, a, v.data() + at, m.data() + at, x.data() + at);
  }
#endif
  for (; at < x.size(); at += 64) {
    const std::size_t n = std::min<std::size_t>(64, x.size() - at);
    scalar::adam_signs_word(bits[at / 64], scale, a, v.data() + at, m.data() + at, x.data() + at,
                            n);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(adam_step_of_signs);

void adam_signs(std::span<const std::uint64_t> bits, float scale, const AdamScalars& a,
                std::span<const float> v, std::span<float> m, std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(adam_step_of_signs)(bits, scale, a, v, m, x);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
