// dense_lion: the Lion step with a dense gradient. Reads 12 and writes 8 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense_lion.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void lion_step(std::span<const float> g, const Blend& blend, Step step, std::span<float> m,
               std::span<float> x) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const std::size_t bytes = hn::Lanes(d) * sizeof(float);
  const auto beta1 = hn::Set(d, blend.beta1), beta1c = hn::Set(d, blend.one_minus_beta1);
  const auto beta2 = hn::Set(d, blend.beta2), beta2c = hn::Set(d, blend.one_minus_beta2);
  const auto decay = hn::Set(d, step.decay), lr = hn::Set(d, step.lr);
  const auto zero = hn::Zero(d), one = hn::Set(d, 1.0f), minus_one = hn::Set(d, -1.0f);
  for (; i + hn::Lanes(d) <= g.size(); i += hn::Lanes(d)) {
    prefetch_next_page(g.data() + i, bytes);
    prefetch_next_page(m.data() + i, bytes);
    prefetch_next_page(x.data() + i, bytes);
    const auto vm = hn::LoadU(d, m.data() + i);
    const auto vg = hn::LoadU(d, g.data() + i);
    const auto u = hn::Add(hn::Mul(beta1, vm), hn::Mul(beta1c, vg));
    hn::StoreU(hn::Add(hn::Mul(beta2, vm), hn::Mul(beta2c, vg)), d, m.data() + i);
    const auto negative = hn::IfThenElseZero(hn::Lt(u, zero), minus_one);
    const auto sign = hn::IfThenElse(hn::Gt(u, zero), one, negative);
    const auto decayed = hn::Mul(hn::LoadU(d, x.data() + i), decay);
    hn::StoreU(hn::Sub(decayed, hn::Mul(lr, sign)), d, x.data() + i);
  }
#endif
  scalar::dense_lion(g.data() + i, blend, step, m.data() + i, x.data() + i, g.size() - i);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(lion_step);

void dense_lion(std::span<const float> g, const Blend& blend, Step step, std::span<float> m,
                std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(lion_step)(g, blend, step, m, x);
}

void DenseLion::run() const noexcept {
  if (is_faulty(guard)) return;
  for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    m.subspan(at, part.size()).for_blocks([&](std::size_t from, std::span<float> momentum) {
      const std::size_t n = momentum.size();
      dense_lion(gradient.subspan(from, n), blend, step, momentum, part.subspan(from, n));
    });
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
