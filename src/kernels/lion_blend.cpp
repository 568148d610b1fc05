// lion_blend and blend_only: the blend as floats, for the methods that quantise it.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/levels.h"
#include "kernels/scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lion_blend.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Coordinates [begin, end) one by one. Returns the first that is not finite.
std::size_t blend_rest(std::span<const float> g, const Blend& b, std::size_t begin, std::size_t end,
                       std::span<float> m, std::span<float> u) {
  std::size_t bad = kAllFinite;
  for (std::size_t i = begin; i < end; ++i) {
    const float blended = b.beta1 * m[i] + b.one_minus_beta1 * g[i];
    const float next = b.beta2 * m[i] + b.one_minus_beta2 * g[i];
    const bool finite = scalar::is_finite(blended) && scalar::is_finite(next);
    u[i] = finite ? blended : 0.0f;
    if (finite) m[i] = next;
    if (!finite && bad == kAllFinite) bad = i;
  }
  return bad;
}

std::size_t blend_and_update(std::span<const float> g, const Blend& blend, std::span<float> m,
                             std::span<float> u) {
  std::size_t bad = kAllFinite;
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto beta1 = hn::Set(d, blend.beta1), beta1c = hn::Set(d, blend.one_minus_beta1);
  const auto beta2 = hn::Set(d, blend.beta2), beta2c = hn::Set(d, blend.one_minus_beta2);
  const auto largest = hn::Set(d, hwy::HighestValue<float>());
  for (; i + 64 <= g.size(); i += 64) {
    prefetch_next_page(g.data() + i, 64 * sizeof(float));
    prefetch_next_page(m.data() + i, 64 * sizeof(float));
    for (std::size_t j = i; j < i + 64; j += hn::Lanes(d)) {
      const auto vm = hn::LoadU(d, m.data() + j), vg = hn::LoadU(d, g.data() + j);
      const auto blended = hn::Add(hn::Mul(beta1, vm), hn::Mul(beta1c, vg));
      const auto next = hn::Add(hn::Mul(beta2, vm), hn::Mul(beta2c, vg));
      const auto finite =
          hn::And(hn::Le(hn::Abs(blended), largest), hn::Le(hn::Abs(next), largest));
      if (HWY_LIKELY(hn::AllTrue(d, finite))) {
        hn::StoreU(next, d, m.data() + j);
        hn::StoreU(blended, d, u.data() + j);
        continue;
      }
      const std::size_t found = blend_rest(g, blend, j, j + hn::Lanes(d), m, u);
      if (bad == kAllFinite) bad = found;
    }
  }
#endif
  const std::size_t found = blend_rest(g, blend, i, g.size(), m, u);
  return bad == kAllFinite ? found : bad;
}

#if PRIDE_SIMD
// A vector of levels of the blend. Returns false, and writes nothing, if a lane is not finite.
HWY_INLINE bool quantise_vector(const float* g, const Blend& blend, float inv, int largest,
                                float* m, std::int8_t* q) {
  const FloatTag d;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  const auto vm = hn::LoadU(d, m), vg = hn::LoadU(d, g);
  const auto u =
      hn::Add(hn::Mul(hn::Set(d, blend.beta1), vm), hn::Mul(hn::Set(d, blend.one_minus_beta1), vg));
  const auto next =
      hn::Add(hn::Mul(hn::Set(d, blend.beta2), vm), hn::Mul(hn::Set(d, blend.one_minus_beta2), vg));
  const auto highest = hn::Set(d, hwy::HighestValue<float>());
  const auto finite = hn::And(hn::Le(hn::Abs(u), highest), hn::Le(hn::Abs(next), highest));
  if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) return false;
  const auto limit = hn::Set(d, static_cast<float>(largest));
  const auto y = hn::Max(hn::Neg(limit), hn::Min(hn::Mul(u, hn::Set(d, inv)), limit));
  hn::StoreU(next, d, m);
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(y)), d8, q);
  return true;
}
#endif

// One by one; the same as blend_rest followed by quantisation.
std::size_t quantise_rest(std::span<const float> g, const Blend& b, float inv, int largest,
                          std::size_t begin, std::size_t end, std::span<float> m,
                          std::span<std::int8_t> q) {
  std::size_t bad = kAllFinite;
  const float limit = static_cast<float>(largest);
  for (std::size_t i = begin; i < end; ++i) {
    const float u = b.beta1 * m[i] + b.one_minus_beta1 * g[i];
    const float next = b.beta2 * m[i] + b.one_minus_beta2 * g[i];
    const bool finite = scalar::is_finite(u) && scalar::is_finite(next);
    const float y = std::max(-limit, std::min((finite ? u : 0.0f) * inv, limit));
    q[i] = static_cast<std::int8_t>(std::nearbyint(y));
    if (finite) m[i] = next;
    if (!finite && bad == kAllFinite) bad = i;
  }
  return bad;
}

std::size_t blend_to_levels(std::span<const float> g, const Blend& blend, float inv, int largest,
                            std::span<float> m, std::span<std::int8_t> q) {
  std::size_t bad = kAllFinite;
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  for (; i + 64 <= g.size(); i += 64) {
    prefetch_next_page(g.data() + i, 64 * sizeof(float));
    prefetch_next_page(m.data() + i, 64 * sizeof(float));
    for (std::size_t j = i; j < i + 64; j += hn::Lanes(d)) {
      if (quantise_vector(g.data() + j, blend, inv, largest, m.data() + j, q.data() + j)) continue;
      const std::size_t found = quantise_rest(g, blend, inv, largest, j, j + hn::Lanes(d), m, q);
      if (bad == kAllFinite) bad = found;
    }
  }
#endif
  const std::size_t found = quantise_rest(g, blend, inv, largest, i, g.size(), m, q);
  return bad == kAllFinite ? found : bad;
}

void blend_floats(std::span<const float> g, const Blend& b, std::span<const float> m,
                  std::span<float> u) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto beta1 = hn::Set(d, b.beta1), beta1c = hn::Set(d, b.one_minus_beta1);
  for (; i + hn::Lanes(d) <= g.size(); i += hn::Lanes(d)) {
    const auto blended = hn::Add(hn::Mul(beta1, hn::LoadU(d, m.data() + i)),
                                 hn::Mul(beta1c, hn::LoadU(d, g.data() + i)));
    hn::StoreU(blended, d, u.data() + i);
  }
#endif
  for (; i < g.size(); ++i) u[i] = b.beta1 * m[i] + b.one_minus_beta1 * g[i];
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(blend_and_update);
HWY_EXPORT(blend_to_levels);
HWY_EXPORT(blend_floats);

std::size_t lion_blend(std::span<const float> g, const Blend& blend, std::span<float> m,
                       std::span<float> u) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(blend_and_update)(g, blend, m, u);
}

std::size_t lion_quantise(std::span<const float> g, const Blend& blend, float inv, int largest,
                          std::span<float> m, std::span<std::int8_t> q) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(blend_to_levels)(g, blend, inv, largest, m, q);
}

void blend_only(std::span<const float> g, const Blend& blend, std::span<const float> m,
                std::span<float> u) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(blend_floats)(g, blend, m, u);
}

void LionBlend::run() const noexcept {
  if (is_faulty(guard)) return;
  for_both(g, m, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    const std::size_t bad = lion_blend(gradient, blend, part, u.subspan(at, part.size()));
    if (bad != kAllFinite) fault.note();
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
