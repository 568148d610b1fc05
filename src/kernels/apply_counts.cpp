// apply_counts: the parameter update from bit planes of the count of +1.
// Reads 4 + n_planes/8 and writes 4 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/apply_counts.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
// One word of coordinates; the same result as scalar::apply_counts_word.
HWY_INLINE void counts_word(const std::uint64_t* planes, std::size_t n_planes, std::size_t stride,
                            int present, float world, Step step, float* HWY_RESTRICT x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  prefetch_next_page(x, 64 * sizeof(float));
  const auto decay = hn::Set(d, step.decay), lr = hn::Set(d, step.lr);
  const auto vworld = hn::Set(d, world);
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    auto sum = hn::Set(di, -present);
    for (std::size_t p = 0; p < n_planes; ++p) {
      const auto mask = hn::RebindMask(di, mask_of(d, planes[p * stride] >> i));
      sum = hn::Add(sum, hn::IfThenElseZero(mask, hn::Set(di, std::int32_t{2} << p)));
    }
    const auto mean = hn::Div(hn::ConvertTo(d, sum), vworld);
    const auto decayed = hn::Mul(hn::LoadU(d, x + i), decay);
    hn::StoreU(hn::Sub(decayed, hn::Mul(lr, mean)), d, x + i);
  }
}
#endif

void counts(std::span<const std::uint64_t> planes, std::size_t n_planes, std::size_t stride,
            int present, int world, Step step, std::span<float> x) {
  const float fworld = static_cast<float>(world);
  const std::uint64_t* word = planes.data();
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= x.size(); at += 64, ++word) {
    counts_word(word, n_planes, stride, present, fworld, step, x.data() + at);
  }
#endif
  for (; at < x.size(); at += 64, ++word) {
    const std::size_t n = std::min<std::size_t>(64, x.size() - at);
    scalar::apply_counts_word(word, n_planes, stride, present, fworld, step, x.data() + at, n);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(counts);

void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                  std::size_t plane_stride, int present, int world, Step step,
                  std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(counts)(planes, n_planes, plane_stride, present, world, step, x);
}

void ApplyCounts::run() const noexcept {
  x.for_blocks([&](std::size_t at, std::span<float> part) {
    apply_counts(planes.subspan(at / 64), n_planes, plane_stride, present, world, step, part);
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
