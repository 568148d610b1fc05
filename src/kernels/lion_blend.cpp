// lion_blend, lion_quantise and blend_only: the blend as floats or levels.
// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/levels.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lion_blend.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Calls use(d, i, u) for the blends u of vectors, updates m where both are finite, and
// returns the first coordinate where they are not.
template <class Use>
HWY_INLINE std::size_t update_momentum(std::span<const float> g, const Blend& b, float* m,
                                       const Use& use) {
  std::size_t bad = kAllFinite;
  for_each_vector(g.size(), {g.data(), m}, [&](auto d, std::size_t i) HWY_ATTR {
    const auto mi = hn::LoadU(d, m + i), gi = hn::LoadU(d, g.data() + i);
    auto u = blend_of(d, mi, gi, b.beta1, b.one_minus_beta1);
    auto next = blend_of(d, mi, gi, b.beta2, b.one_minus_beta2);
    const auto finite = hn::And(is_finite(d, u), is_finite(d, next));
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) {
      const std::uint64_t lanes = mask_bits(d, hn::Not(finite));
      if (bad == kAllFinite) bad = i + static_cast<std::size_t>(std::countr_zero(lanes));
      u = hn::IfThenElseZero(finite, u);
      next = hn::IfThenElse(finite, next, mi);
    }
    hn::StoreU(next, d, m + i);
    use(d, i, u);
  });
  return bad;
}

std::size_t blend_and_update(std::span<const float> g, const Blend& blend, float* m, float* u) {
  return update_momentum(g, blend, m, [=](auto d, std::size_t i, auto blended) HWY_ATTR {
    hn::StoreU(blended, d, u + i);
  });
}

std::size_t blend_to_levels(std::span<const float> g, const Blend& blend, float inv, int largest,
                            float* m, std::int8_t* q) {
  return update_momentum(g, blend, m, [=](auto d, std::size_t i, auto u) HWY_ATTR {
    store_levels(d, hn::NearestInt(scaled(d, u, inv, largest)), q + i);
  });
}

void blend_floats(const float* g, const Blend& b, const float* m, std::span<float> u) {
  for_each_vector(u.size(), {}, [&](auto d, std::size_t i) HWY_ATTR {
    const auto mi = hn::LoadU(d, m + i), gi = hn::LoadU(d, g + i);
    hn::StoreU(blend_of(d, mi, gi, b.beta1, b.one_minus_beta1), d, u.data() + i);
  });
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
  return PRIDE_DISPATCH(blend_and_update)(g, blend, m.data(), u.data());
}

std::size_t lion_quantise(std::span<const float> g, const Blend& blend, float inv, int largest,
                          std::span<float> m, std::span<std::int8_t> q) noexcept {
  return PRIDE_DISPATCH(blend_to_levels)(g, blend, inv, largest, m.data(), q.data());
}

void blend_only(std::span<const float> g, const Blend& blend, std::span<const float> m,
                std::span<float> u) noexcept {
  PRIDE_DISPATCH(blend_floats)(g.data(), blend, m.data(), u);
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
