// apply_signs and apply_ternary: the parameter update from packed signs.
// Reads 4.125 (4.25) and writes 4 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/apply_signs.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
HWY_INLINE void signs_word(std::uint64_t word, Step step, float* HWY_RESTRICT x) {
  const FloatTag d;
  prefetch_next_page(x, 64 * sizeof(float));
  const auto decay = hn::Set(d, step.decay);
  const auto plus = hn::Set(d, step.lr), minus = hn::Set(d, -step.lr);
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto change = hn::IfThenElse(mask_of(d, word >> i), plus, minus);
    hn::StoreU(hn::Sub(hn::Mul(hn::LoadU(d, x + i), decay), change), d, x + i);
  }
}

HWY_INLINE void ternary_word(std::uint64_t positive, std::uint64_t nonzero, Step step,
                             float* HWY_RESTRICT x) {
  const FloatTag d;
  prefetch_next_page(x, 64 * sizeof(float));
  const auto decay = hn::Set(d, step.decay);
  const auto plus = hn::Set(d, step.lr), minus = hn::Set(d, -step.lr);
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto change = hn::IfThenElse(mask_of(d, positive >> i), plus, minus);
    const auto decayed = hn::Mul(hn::LoadU(d, x + i), decay);
    const auto next = hn::IfThenElse(mask_of(d, nonzero >> i), hn::Sub(decayed, change), decayed);
    hn::StoreU(next, d, x + i);
  }
}
#endif

void signs(std::span<const std::uint64_t> bits, Step step, std::span<float> x) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= x.size(); at += 64) signs_word(bits[at / 64], step, x.data() + at);
#endif
  for (; at < x.size(); at += 64) {
    const std::size_t n = std::min<std::size_t>(64, x.size() - at);
    scalar::apply_signs_word(bits[at / 64], step, x.data() + at, n);
  }
}

void ternary(std::span<const std::uint64_t> positive, std::span<const std::uint64_t> nonzero,
             Step step, std::span<float> x) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= x.size(); at += 64) {
    ternary_word(positive[at / 64], nonzero[at / 64], step, x.data() + at);
  }
#endif
  for (; at < x.size(); at += 64) {
    const std::size_t n = std::min<std::size_t>(64, x.size() - at);
    scalar::apply_ternary_word(positive[at / 64], nonzero[at / 64], step, x.data() + at, n);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(signs);
HWY_EXPORT(ternary);

void apply_signs(std::span<const std::uint64_t> bits, Step step, std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(signs)(bits, step, x);
}

void apply_ternary(std::span<const std::uint64_t> positive, std::span<const std::uint64_t> nonzero,
                   Step step, std::span<float> x) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(ternary)(positive, nonzero, step, x);
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

void ApplyScaledSigns::run() const noexcept {
  scales.for_blocks(x.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
    const Step of_block = {decay, scales.of[k]};
    ApplySigns{bits.subspan(at / 64, words_for(n)), of_block, x.subspan(at, n)}.run();
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
