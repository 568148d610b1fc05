// The update rules on a given gradient: adamw, dense_lion, sgd_momentum and sgd; the accumulation
// of the sparse methods; scale and apply_decay. Bytes per coordinate in kernels.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void adamw_step(const float* g, const AdamScalars& s, float* m, float* v, std::span<float> x) {
  for_each_vector(x.size(), {g, m, v, x.data()}, [&](auto d, std::size_t i) HWY_ATTR {
    const auto gi = hn::LoadU(d, g + i), old_m = hn::LoadU(d, m + i), old_v = hn::LoadU(d, v + i);
    const auto new_m = blend_of(d, old_m, gi, s.beta1, s.one_minus_beta1);
    const auto new_v = hn::Add(hn::Mul(hn::Set(d, s.beta2), old_v),
                               hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), gi), gi));
    const auto root = hn::Div(hn::Sqrt(new_v), hn::Set(d, s.sqrt_bias2));
    const auto change =
        hn::Div(hn::Mul(hn::Set(d, s.step_size), new_m), hn::Add(root, hn::Set(d, s.eps)));
    const auto kept = decayed(d, hn::LoadU(d, x.data() + i), s.decay, change);
    hn::StoreU(new_m, d, m + i);
    hn::StoreU(new_v, d, v + i);
    hn::StoreU(hn::Sub(kept, change), d, x.data() + i);
  });
}

void lion_step(const float* g, const Blend& b, Step step, float* m, std::span<float> x) {
  with_decay(step.decay, [=](auto decay) HWY_ATTR {
    for_each_vector(x.size(), {g, m, x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
      const auto gi = hn::LoadU(d, g + i), mi = hn::LoadU(d, m + i), zero = hn::Zero(d);
      const auto u = blend_of(d, mi, gi, b.beta1, b.one_minus_beta1);
      const auto next = blend_of(d, mi, gi, b.beta2, b.one_minus_beta2);
      const auto negative = hn::IfThenElseZero(hn::Lt(u, zero), hn::Set(d, -1.0f));
      const auto sign = hn::IfThenElse(hn::Gt(u, zero), hn::Set(d, 1.0f), negative);
      hn::StoreU(next, d, m + i);
      hn::StoreU(stepped(d, x.data() + i, decay, step.lr, sign), d, x.data() + i);
    });
  });
}

void momentum_step(const float* g, float momentum, bool nesterov, Step step, float* m,
                   std::span<float> x) {
  for_each_vector(x.size(), {g, m, x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto gi = hn::LoadU(d, g + i), beta = hn::Set(d, momentum);
    const auto next = hn::Add(hn::Mul(beta, hn::LoadU(d, m + i)), gi);
    hn::StoreU(next, d, m + i);
    const auto change = nesterov ? hn::Add(gi, hn::Mul(beta, next)) : next;
    hn::StoreU(stepped(d, x.data() + i, step.decay, step.lr, change), d, x.data() + i);
  });
}

void plain_step(const float* g, Step step, std::span<float> x) {
  for_each_vector(x.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(stepped(d, x.data() + i, step.decay, step.lr, hn::LoadU(d, g + i)), d, x.data() + i);
  });
}

void correct(std::span<const float> g, float scale, float momentum, bool nesterov, float* u,
             float* v) {
  for_each_vector(g.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto gs = hn::Mul(hn::Set(d, scale), hn::LoadU(d, g.data() + i));
    const auto beta = hn::Set(d, momentum), old = hn::LoadU(d, u + i);
    const auto next = nesterov ? hn::Mul(beta, hn::Add(old, gs)) : hn::Add(hn::Mul(beta, old), gs);
    const auto sum = hn::Add(hn::LoadU(d, v + i), next);
    hn::StoreU(next, d, u + i);
    hn::StoreU(nesterov ? hn::Add(sum, gs) : sum, d, v + i);
  });
}

void scale_by(float factor, std::span<float> x) {
  for_each_vector(x.size(), {x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x.data() + i), hn::Set(d, factor)), d, x.data() + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(adamw_step);
HWY_EXPORT(lion_step);
HWY_EXPORT(momentum_step);
HWY_EXPORT(plain_step);
HWY_EXPORT(correct);
HWY_EXPORT(scale_by);

void adamw(std::span<const float> g, const AdamScalars& s, std::span<float> m, std::span<float> v,
           std::span<float> x) noexcept {
  PRIDE_DISPATCH(adamw_step)(g.data(), s, m.data(), v.data(), x);
}

void dense_lion(std::span<const float> g, const Blend& blend, Step step, std::span<float> m,
                std::span<float> x) noexcept {
  PRIDE_DISPATCH(lion_step)(g.data(), blend, step, m.data(), x);
}

void sgd_momentum(std::span<const float> g, float momentum, bool nesterov, Step step,
                  std::span<float> m, std::span<float> x) noexcept {
  PRIDE_DISPATCH(momentum_step)(g.data(), momentum, nesterov, step, m.data(), x);
}

void sgd(std::span<const float> g, Step step, std::span<float> x) noexcept {
  PRIDE_DISPATCH(plain_step)(g.data(), step, x);
}

void correct_momentum(std::span<const float> g, float scale, float momentum, bool nesterov,
                      std::span<float> u, std::span<float> v) noexcept {
  PRIDE_DISPATCH(correct)(g, scale, momentum, nesterov, u.data(), v.data());
}

void scale(float factor, std::span<float> x) noexcept { PRIDE_DISPATCH(scale_by)(factor, x); }

void apply_decay(float decay, std::span<float> x) noexcept {
  if (decay != 1) scale(decay, x);
}

void AdamW::run() const noexcept {
  if (is_faulty(guard)) return;
  for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    adamw(gradient, s, m.subspan(at, part.size()), v.subspan(at, part.size()), part);
  });
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

void SgdMomentum::run() const noexcept {
  if (is_faulty(guard)) return;
  for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    sgd_momentum(gradient, momentum, nesterov, step, m.subspan(at, part.size()), part);
  });
}

void Scale::run() const noexcept { scale(factor, x); }

void ApplyDecay::run() const noexcept {
  if (decay == 1) return;
  x.for_blocks([&](std::size_t, std::span<float> part) { apply_decay(decay, part); });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
