// lion_sign_update: blend, sign bits and momentum in one pass.
// Reads 8 and writes 4.125 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lion_sign_update.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

struct LionWord {
  std::uint64_t bits = 0;
  std::uint64_t bad = 0;  // lanes that are not finite
};

// Word k, of n coordinates.
HWY_INLINE LionWord lion_word(const float* HWY_RESTRICT g, std::size_t n, const Blend& b,
                              const SharedBits& zeros, std::size_t k, float* HWY_RESTRICT m) {
  LionWord out;
  std::uint64_t zero_bits = 0;
  for_each_vector(n, {g, m}, [&](auto d, std::size_t i) HWY_ATTR {
    const auto mi = hn::LoadU(d, m + i), gi = hn::LoadU(d, g + i);
    const auto u = blend_of(d, mi, gi, b.beta1, b.one_minus_beta1);
    auto next = blend_of(d, mi, gi, b.beta2, b.one_minus_beta2);
    auto positive = hn::Gt(u, hn::Zero(d)), zero = hn::Eq(u, hn::Zero(d));
    const auto finite = hn::And(is_finite(d, u), is_finite(d, next));
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) {
      out.bad |= mask_bits(d, hn::Not(finite)) << i;
      next = hn::IfThenElse(finite, next, mi);
      positive = hn::And(positive, finite);
      zero = hn::And(zero, finite);
    }
    hn::StoreU(next, d, m + i);
    out.bits |= mask_bits(d, positive) << i;
    zero_bits |= mask_bits(d, zero) << i;
  });
  if (HWY_UNLIKELY(zero_bits != 0)) out.bits |= zero_bits & zeros.at(k);
  return out;
}

std::size_t lion(std::span<const float> g, const Blend& blend, const SharedBits& zeros,
                 std::span<float> m, std::span<std::uint64_t> bits) {
  std::size_t first_bad = kAllFinite;
  for (std::size_t k = 0; k < bits.size(); ++k) {
    const std::size_t at = k * 64, n = std::min<std::size_t>(64, g.size() - at);
    const LionWord word = HWY_LIKELY(n == 64)
                              ? lion_word(g.data() + at, 64, blend, zeros, k, m.data() + at)
                              : lion_word(g.data() + at, n, blend, zeros, k, m.data() + at);
    if (HWY_UNLIKELY(word.bad != 0 && first_bad == kAllFinite)) {
      first_bad = at + static_cast<std::size_t>(std::countr_zero(word.bad));
    }
    bits[k] = word.bits;
  }
  return first_bad;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(lion);

std::size_t lion_sign_update(std::span<const float> g, const Blend& blend, const SharedBits& zeros,
                             std::span<float> m, std::span<std::uint64_t> bits) noexcept {
  return PRIDE_DISPATCH(lion)(g, blend, zeros, m, bits);
}

void LionSigns::run() const noexcept {
  for_both(g, m, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
    const std::size_t bad = lion_sign_update(gradient, blend, zeros.from(at), part,
                                             bits.subspan(at / 64, words_for(part.size())));
    if (bad != kAllFinite) fault.note();
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
