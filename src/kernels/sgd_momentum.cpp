// sgd_momentum: SGD with momentum. Reads 12 and writes 8 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sgd_momentum.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void momentum_step(std::span<const float> g, float momentum, bool nesterov, Step step,
                   std::span<float> m, std::span<float> x) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const std::size_t bytes = hn::Lanes(d) * sizeof(float);
  const auto beta = hn::Set(d, momentum);
  const auto decay = hn::Set(d, step.decay), lr = hn::Set(d, step.lr);
  for (; i + hn::Lanes(d) <= g.size(); i += hn::Lanes(d)) {
    prefetch_next_page(g.data() + i, bytes);
    prefetch_next_page(m.data() + i, bytes);
    prefetch_next_page(x.data() + i, bytes);
    const auto vg = hn::LoadU(d, g.data() + i);
    const auto vm = hn::Add(hn::Mul(beta, hn::LoadU(d, m.data() + i)), vg);
    hn::StoreU(vm, d, m.data() + i);
    const auto change = nesterov ? hn::Add(vg, hn::Mul(beta, vm)) : vm;
    const auto decayed = hn::Mul(hn::LoadU(d, x.data() + i), decay);
    hn::StoreU(hn::Sub(decayed, hn::Mul(lr, change)), d, x.data() + i);
  }
#endif
  scalar::sgd_momentum(g.data() + i, momentum, nesterov, step, m.data() + i, x.data() + i,
                       g.size() - i);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(momentum_step);

void sgd_momentum(std::span<const float> g, float momentum, bool nesterov, Step step,
                  std::span<float> m, std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(momentum_step)(g, momentum, nesterov, step, m, x);
}

void SgdMomentum::run() const noexcept {
  if (is_faulty(guard)) return;
  for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    sgd_momentum(gradient, momentum, nesterov, step, m.subspan(at, part.size()), part);
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
