// correct_momentum and sgd: accumulation in the sparse methods, and the step on their result.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/correct_momentum.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void correct(std::span<const float> g, float scale, float momentum, bool nesterov,
             std::span<float> u, std::span<float> v) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto vscale = hn::Set(d, scale), beta = hn::Set(d, momentum);
  for (; i + hn::Lanes(d) <= g.size(); i += hn::Lanes(d)) {
    const auto gs = hn::Mul(vscale, hn::LoadU(d, g.data() + i));
    const auto old = hn::LoadU(d, u.data() + i);
    const auto next = nesterov ? hn::Mul(beta, hn::Add(old, gs)) : hn::Add(hn::Mul(beta, old), gs);
    const auto sum = hn::Add(hn::LoadU(d, v.data() + i), next);
    hn::StoreU(next, d, u.data() + i);
    hn::StoreU(nesterov ? hn::Add(sum, gs) : sum, d, v.data() + i);
  }
#endif
  for (; i < g.size(); ++i) {
    const float gs = scale * g[i];
    u[i] = nesterov ? momentum * (u[i] + gs) : momentum * u[i] + gs;
    v[i] = nesterov ? (v[i] + u[i]) + gs : v[i] + u[i];
  }
}

void plain_step(std::span<const float> g, Step step, std::span<float> x) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto decay = hn::Set(d, step.decay), lr = hn::Set(d, step.lr);
  for (; i + hn::Lanes(d) <= g.size(); i += hn::Lanes(d)) {
    const auto decayed = hn::Mul(hn::LoadU(d, x.data() + i), decay);
    hn::StoreU(hn::Sub(decayed, hn::Mul(lr, hn::LoadU(d, g.data() + i))), d, x.data() + i);
  }
#endif
  for (; i < g.size(); ++i) x[i] = x[i] * step.decay - step.lr * g[i];
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(correct);
HWY_EXPORT(plain_step);

void correct_momentum(std::span<const float> g, float scale, float momentum, bool nesterov,
                      std::span<float> u, std::span<float> v) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(correct)(g, scale, momentum, nesterov, u, v);
}

void sgd(std::span<const float> g, Step step, std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(plain_step)(g, step, x);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
