// stochastic_signs and draw_planes: comparisons with Philox words.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/stochastic_signs.h"

#include <algorithm>

#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/stochastic_signs.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/philox-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

constexpr std::uint32_t kSignWords = 0x53530000u, kVoteWords = 0x53560000u;

// One word of n <= 64 coordinates.
HWY_INLINE std::uint64_t sign_word(const float* u, std::size_t n, float scale,
                                   const std::uint32_t* random, const SharedBits& zeros,
                                   std::size_t k) {
  std::uint64_t bits = 0, zero_bits = 0;
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const WordTag dw;
  const hn::RebindToSigned<FloatTag> di;
  const auto one = hn::Set(d, 1.0f), unit = hn::Set(d, 0x1p-23f), vscale = hn::Set(d, scale);
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto word = hn::BitCast(di, hn::ShiftRight<8>(hn::LoadU(dw, random + i)));
    const auto t = hn::Sub(hn::Mul(hn::ConvertTo(d, word), unit), one);
    const auto v = hn::LoadU(d, u + i);
    bits |= mask_bits(d, hn::Lt(hn::Mul(t, vscale), v)) << i;
    zero_bits |= mask_bits(d, hn::Eq(v, hn::Zero(d))) << i;
  }
#endif
  for (; i < n; ++i) {
    const float t = static_cast<float>(random[i] >> 8) * 0x1p-23f - 1.0f;
    bits |= std::uint64_t{t * scale < u[i]} << i;
    zero_bits |= std::uint64_t{u[i] == 0} << i;
  }
  if (zero_bits != 0) bits = (bits & ~zero_bits) | (zero_bits & zeros.at(k));
  return bits;
}

void sign_words(std::span<const float> u, float scale, const PhiloxKey& key,
                const SharedBits& zeros, std::span<std::uint64_t> bits) {
  alignas(64) std::uint32_t random[64];
  for (std::size_t k = 0; k < bits.size(); ++k) {
    const std::size_t n = std::min<std::size_t>(64, u.size() - 64 * k);
    philox_words(key, kSignWords, key.first_coord + 64 * k, random);
    bits[k] = sign_word(u.data() + 64 * k, n, scale, random, zeros, k);
  }
}

// Word k of the counts.
HWY_INLINE std::uint64_t vote_word(const Planes& counts, std::size_t k, std::uint32_t present,
                                   const std::uint32_t* random, const SharedBits& ties) {
  const std::uint64_t* planes = counts.words.data() + k;
  // no count is half of an odd number, nor of none
  const bool can_tie = present != 0 && present % 2 == 0;
  const auto half = can_tie ? static_cast<std::int32_t>(present / 2) : -1;
  std::uint64_t bits = 0, tied = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const WordTag dw;
  const hn::RebindToSigned<FloatTag> di;
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    auto count = hn::Zero(di);
    for (std::size_t p = 0; p < counts.n; ++p) {
      const auto mask = hn::RebindMask(di, mask_of(d, planes[p * counts.stride] >> i));
      count = hn::Add(count, hn::IfThenElseZero(mask, hn::Set(di, std::int32_t{1} << p)));
    }
    // both below 2^31
    const auto drawn = multiply(hn::LoadU(dw, random + i), hn::Set(dw, present)).high;
    bits |= mask_bits(d, hn::RebindMask(d, hn::Lt(hn::BitCast(di, drawn), count))) << i;
    tied |= mask_bits(d, hn::RebindMask(d, hn::Eq(count, hn::Set(di, half)))) << i;
  }
#else
  for (std::size_t i = 0; i < 64; ++i) {
    std::uint32_t count = 0;
    for (std::size_t p = 0; p < counts.n; ++p) {
      count |= static_cast<std::uint32_t>((planes[p * counts.stride] >> i) & 1) << p;
    }
    bits |= std::uint64_t{(std::uint64_t{random[i]} * present) >> 32 < count} << i;
    tied |= std::uint64_t{static_cast<std::int32_t>(count) == half} << i;
  }
#endif
  if (tied != 0) bits = (bits & ~tied) | (tied & ties.at(k));
  return bits;
}

void vote_words(Planes counts, std::uint32_t present, const PhiloxKey& key, const SharedBits& ties,
                std::span<std::uint64_t> positive) {
  alignas(64) std::uint32_t random[64];
  for (std::size_t k = 0; k < positive.size(); ++k) {
    philox_words(key, kVoteWords, key.first_coord + 64 * k, random);
    positive[k] = vote_word(counts, k, present, random, ties);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(sign_words);
HWY_EXPORT(vote_words);

void stochastic_signs(std::span<const float> u, float scale, const PhiloxKey& key,
                      const SharedBits& zeros, std::span<std::uint64_t> bits) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(sign_words)(u, scale, key, zeros, bits);
}

void draw_planes(Planes counts, int present, const PhiloxKey& key, const SharedBits& ties,
                 std::span<std::uint64_t> positive) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(vote_words)
  (counts, static_cast<std::uint32_t>(present), key, ties, positive);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
