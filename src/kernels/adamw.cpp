// adamw: the AdamW step. Reads 16 and writes 12 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void adamw_step(std::span<const float> g, const AdamScalars& s, std::span<float> m,
                std::span<float> v, std::span<float> x) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const std::size_t bytes = hn::Lanes(d) * sizeof(float);
  const auto beta1 = hn::Set(d, s.beta1), beta1c = hn::Set(d, s.one_minus_beta1);
  const auto beta2 = hn::Set(d, s.beta2), beta2c = hn::Set(d, s.one_minus_beta2);
  const auto step_size = hn::Set(d, s.step_size), sqrt_bias2 = hn::Set(d, s.sqrt_bias2);
  const auto eps = hn::Set(d, s.eps), decay = hn::Set(d, s.decay);
  for (; i + hn::Lanes(d) <= g.size(); i += hn::Lanes(d)) {
    prefetch_next_page(g.data() + i, bytes);
    prefetch_next_page(m.data() + i, bytes);
    prefetch_next_page(v.data() + i, bytes);
    prefetch_next_page(x.data() + i, bytes);
    const auto vg = hn::LoadU(d, g.data() + i);
    const auto m1 = hn::Add(hn::Mul(beta1, hn::LoadU(d, m.data() + i)), hn::Mul(beta1c, vg));
    const auto v1 =
        hn::Add(hn::Mul(beta2, hn::LoadU(d, v.data() + i)), hn::Mul(hn::Mul(beta2c, vg), vg));
    const auto below = hn::Add(hn::Div(hn::Sqrt(v1), sqrt_bias2), eps);
    const auto change = hn::Div(hn::Mul(step_size, m1), below);
    const auto decayed = hn::Mul(hn::LoadU(d, x.data() + i), decay);
    hn::StoreU(m1, d, m.data() + i);
    hn::StoreU(v1, d, v.data() + i);
    hn::StoreU(hn::Sub(decayed, change), d, x.data() + i);
  }
#endif
  scalar::adamw(g.data() + i, s, m.data() + i, v.data() + i, x.data() + i, g.size() - i);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(adamw_step);

void adamw(std::span<const float> g, const AdamScalars& s, std::span<float> m, std::span<float> v,
           std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(adamw_step)(g, s, m, v, x);
}

void AdamW::run() const noexcept {
  if (is_faulty(guard)) return;
  for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    adamw(gradient, s, m.subspan(at, part.size()), v.subspan(at, part.size()), part);
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
