// apply_signs, apply_ternary and apply_counts: the parameter update from packed signs, or from bit
// planes of the count of +1. Bytes per coordinate in kernels.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/apply.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void signs(const std::uint64_t* bits, Step step, std::span<float> x) {
  with_decay(step.decay, [=](auto decay) HWY_ATTR {
    for_each_vector(x.size(), {x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
      const auto change = signed_value(d, bits, i, step.lr);
      const auto kept = decayed(d, hn::LoadU(d, x.data() + i), decay, change);
      hn::StoreU(hn::Sub(kept, change), d, x.data() + i);
    });
  });
}

void ternary(const std::uint64_t* positive, const std::uint64_t* nonzero, Step step,
             std::span<float> x) {
  with_decay(step.decay, [=](auto decay) HWY_ATTR {
    for_each_vector(x.size(), {x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
      const auto sign = signed_value(d, positive, i, step.lr);
      const auto change = hn::IfThenElseZero(mask_at(d, nonzero, i), sign);
      const auto kept = decayed(d, hn::LoadU(d, x.data() + i), decay, change);
      hn::StoreU(hn::Sub(kept, change), d, x.data() + i);
    });
  });
}

void counts(const std::uint64_t* planes, std::size_t n_planes, std::size_t stride, int present,
            float world, Step step, std::span<float> x) {
  with_decay(step.decay, [=](auto decay) HWY_ATTR {
    for_each_vector(x.size(), {x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
      const auto sum = number_at(d, planes, n_planes, stride, i, 2, -present);
      const auto mean = hn::Div(sum, hn::Set(d, world));
      hn::StoreU(stepped(d, x.data() + i, decay, step.lr, mean), d, x.data() + i);
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(signs);
HWY_EXPORT(ternary);
HWY_EXPORT(counts);

void apply_signs(std::span<const std::uint64_t> bits, Step step, std::span<float> x) noexcept {
  PRIDE_DISPATCH(signs)(bits.data(), step, x);
}

void apply_ternary(std::span<const std::uint64_t> positive, std::span<const std::uint64_t> nonzero,
                   Step step, std::span<float> x) noexcept {
  PRIDE_DISPATCH(ternary)(positive.data(), nonzero.data(), step, x);
}

void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                  std::size_t plane_stride, int present, int world, Step step,
                  std::span<float> x) noexcept {
  PRIDE_DISPATCH(counts)
  (planes.data(), n_planes, plane_stride, present, static_cast<float>(world), step, x);
}

void ApplySigns::run() const noexcept {
  x.for_blocks([&](std::size_t at, std::span<float> part) {
    apply_signs(bits.subspan(at / 64, words_for(part.size())), step, part);
  });
}

void ApplyTernary::run() const noexcept {
  x.for_blocks([&](std::size_t at, std::span<float> part) {
    const std::size_t first = at / 64, n = words_for(part.size());
    apply_ternary(positive.subspan(first, n), nonzero.subspan(first, n), step, part);
  });
}

void ApplyCounts::run() const noexcept {
  x.for_blocks([&](std::size_t at, std::span<float> part) {
    apply_counts(planes.subspan(at / 64), n_planes, plane_stride, present, world, step, part);
  });
}

void ApplyScaledSigns::run() const noexcept {
  scales.for_blocks(x.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
    const Step of_block = {decay, scales.of[k]};
    ApplySigns{bits.subspan(at / 64, words_for(n)), of_block, x.subspan(at, n)}.run();
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
