// lion_sign_update and its sparse form: blend, sign bits and momentum in one pass.
// Reads 8 and writes 4.125 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lion_sign_update.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
// Sixty-four coordinates at once; the same result as scalar::lion_word.
template <bool kPresence>
HWY_INLINE scalar::LionWord lion_word(const float* HWY_RESTRICT g, const Blend& blend,
                                      HashWords zeros, std::size_t k, float* HWY_RESTRICT m) {
  const FloatTag d;
  const auto beta1 = hn::Set(d, blend.beta1), beta1c = hn::Set(d, blend.one_minus_beta1);
  const auto beta2 = hn::Set(d, blend.beta2), beta2c = hn::Set(d, blend.one_minus_beta2);
  const auto largest = hn::Set(d, hwy::HighestValue<float>());
  const auto floor = hn::Set(d, kPresenceFloor);
  prefetch_next_page(g, 64 * sizeof(float));
  prefetch_next_page(m, 64 * sizeof(float));
  scalar::LionWord out;
  std::uint64_t zero_bits = 0;
  auto largest_u = hn::Zero(d);
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto vm = hn::LoadU(d, m + i);
    const auto vg = hn::LoadU(d, g + i);
    const auto u = hn::Add(hn::Mul(beta1, vm), hn::Mul(beta1c, vg));
    auto next = hn::Add(hn::Mul(beta2, vm), hn::Mul(beta2c, vg));
    auto positive = hn::Gt(u, hn::Zero(d));
    auto zero = hn::Eq(u, hn::Zero(d));
    const auto size_u = hn::Abs(u);
    // a comparison with NaN is false, so one test covers NaN and Inf
    const auto finite = hn::And(hn::Le(size_u, largest), hn::Le(hn::Abs(next), largest));
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) {
      out.bad |= mask_bits(d, hn::Not(finite)) << i;
      next = hn::IfThenElse(finite, next, vm);
      positive = hn::And(positive, finite);
      zero = hn::And(zero, finite);
    }
    hn::StoreU(next, d, m + i);
    out.bits |= mask_bits(d, positive) << i;
    zero_bits |= mask_bits(d, zero) << i;
    if constexpr (kPresence) largest_u = hn::IfThenElse(hn::Ge(size_u, floor), size_u, largest_u);
  }
  if (HWY_UNLIKELY(zero_bits != 0)) out.bits |= zero_bits & mix64(zeros.key, zeros.first_word + k);
  if constexpr (kPresence) out.present = !hn::AllTrue(d, hn::Eq(largest_u, hn::Zero(d)));
  return out;
}
#endif

template <bool kPresence>
std::size_t lion(std::span<const float> g, const Blend& blend, HashWords zeros, std::span<float> m,
                 std::span<std::uint64_t> bits, std::span<std::uint64_t> presence) {
  std::size_t first_bad = kAllFinite;
  for (std::size_t k = 0; k < bits.size(); ++k) {
    const std::size_t at = k * 64, n = std::min<std::size_t>(64, g.size() - at);
    scalar::LionWord word;
#if PRIDE_SIMD
    if (HWY_LIKELY(n == 64)) {
      word = lion_word<kPresence>(g.data() + at, blend, zeros, k, m.data() + at);
    } else  // NOLINT(readability/braces)
#endif
    {
      const std::uint64_t hash = mix64(zeros.key, zeros.first_word + k);
      word = scalar::lion_word(g.data() + at, n, blend, hash, m.data() + at);
    }
    if (HWY_UNLIKELY(word.bad != 0 && first_bad == kAllFinite)) {
      first_bad = at + static_cast<std::size_t>(std::countr_zero(word.bad));
    }
    if constexpr (kPresence) {
      if (k % 64 == 0) presence[k / 64] = 0;
      presence[k / 64] |= std::uint64_t{word.present} << (k % 64);
      if (!word.present) word.bits = 0;
    }
    bits[k] = word.bits;
  }
  return first_bad;
}

std::size_t lion_dense(std::span<const float> g, const Blend& blend, HashWords zeros,
                       std::span<float> m, std::span<std::uint64_t> bits) {
  return lion<false>(g, blend, zeros, m, bits, {});
}

std::size_t lion_sparse(std::span<const float> g, const Blend& blend, HashWords zeros,
                        std::span<float> m, std::span<std::uint64_t> bits,
                        std::span<std::uint64_t> presence) {
  return lion<true>(g, blend, zeros, m, bits, presence);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(lion_dense);
HWY_EXPORT(lion_sparse);

std::size_t lion_sign_update(std::span<const float> g, const Blend& blend, HashWords zeros,
                             std::span<float> m, std::span<std::uint64_t> bits) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(lion_dense)(g, blend, zeros, m, bits);
}

std::size_t lion_sign_update_sparse(std::span<const float> g, const Blend& blend, HashWords zeros,
                                    std::span<float> m, std::span<std::uint64_t> bits,
                                    std::span<std::uint64_t> presence) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(lion_sparse)(g, blend, zeros, m, bits, presence);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
