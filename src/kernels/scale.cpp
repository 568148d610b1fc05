// scale and apply_decay: x = x*factor. Reads 4 and writes 4 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scale.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void scale_by(float factor, std::span<float> x) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto vfactor = hn::Set(d, factor);
  for (; i + hn::Lanes(d) <= x.size(); i += hn::Lanes(d)) {
    prefetch_next_page(x.data() + i, hn::Lanes(d) * sizeof(float));
    hn::StoreU(hn::Mul(hn::LoadU(d, x.data() + i), vfactor), d, x.data() + i);
  }
#endif
  scalar::scale(factor, x.data() + i, x.size() - i);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(scale_by);

void scale(float factor, std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(scale_by)(factor, x);
}

void apply_decay(float decay, std::span<float> x) noexcept {
  if (decay != 1) scale(decay, x);
}

void Scale::run() const noexcept { scale(factor, x); }

void ApplyDecay::run() const noexcept {
  if (decay == 1) return;
  x.for_blocks([&](std::size_t, std::span<float> part) { apply_decay(decay, part); });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
