// The vote over the ranks' levels: their codes are added in bit slices, so that one operation adds
// a bit of as many coordinates as a vector has bits, and nothing overflows.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/isa.h"
#include "kernels/levels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vote_levels.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/bit_slices-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Sum of the rows' codes in kBits + kCarry planes, at one vector of words. Returns the mask of
// codes with all bits set: no level has this code.
template <std::size_t kBits, std::size_t kCarry, class D, class V = hn::Vec<D>>
HWY_INLINE V sum_codes(D d, Rows rows, std::size_t at, std::size_t width,
                       V (&planes)[kBits + kCarry]) {
  for (V& plane : planes) plane = hn::Zero(d);
  V wrong = hn::Zero(d);
  for (const std::uint64_t* row : rows) {
    V carry = hn::Zero(d), all = hn::Not(carry);
    for (std::size_t b = 0; b < kBits; ++b) {
      const V bit = hn::LoadU(d, row + at + b * width);
      all = hn::And(all, bit);
      full_add(planes[b], bit, carry, planes[b], carry);
    }
    ripple(kBits, carry, planes);
    wrong = hn::Or(wrong, all);
  }
  return wrong;
}

// Prefetches the lines of a row 2 KiB ahead of its run: each row is a stream of its own, and the
// hardware's prefetchers stop at the end of a page. Prefetches cannot fault.
template <std::size_t kBits>
HWY_INLINE void prefetch_runs(const LevelRows& rows, std::size_t k) {
  constexpr std::size_t kAhead = 256;  // words
  const std::size_t at = rows.shape.at(rows.first + k) + kAhead;
  for (const std::uint64_t* row : rows.lines) {
    for (std::size_t b = 0; b < kBits; ++b) hwy::Prefetch(row + at + b * kRunWords);
  }
}

// Calls finish(d, above, equal, k) for words k, k + 1, ... of the result. Returns true if all codes
// are valid.
template <std::size_t kBits, std::size_t kCarry, class Finish>
bool for_each_sum(const LevelRows& rows, std::size_t n_words, const Finish& finish) {
  const std::size_t zero = rows.lines.size() * ((std::size_t{1} << (kBits - 1)) - 1);
  std::uint64_t wrong = 0;
  const auto step = [&](auto d, std::size_t k) HWY_ATTR {
    hn::Vec<decltype(d)> planes[kBits + kCarry];
    const std::size_t word = rows.first + k;
    const auto bad = sum_codes<kBits, kCarry>(d, rows.lines, rows.shape.at(word),
                                              rows.shape.width(word), planes);
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Eq(bad, hn::Zero(d))))) wrong = 1;
    const auto sign = compare(d, planes, zero);
    finish(d, sign.above, sign.equal, k);
  };
  const WordsTag d;
  for (std::size_t k = 0; k < n_words;) {
    // vectors within a line, single words at the end of a line or of the range
    const std::size_t in_line = rows.shape.width(rows.first + k) - (rows.first + k) % kRunWords;
    const std::size_t left = std::min(in_line, n_words - k);
    const std::size_t end = k + left;
    prefetch_runs<kBits>(rows, k);
    for (; k + hn::Lanes(d) <= end; k += hn::Lanes(d)) step(d, k);
    for (; k < end; ++k) step(OneWordTag(), k);
  }
  return wrong == 0;
}

template <std::size_t kBits, class Finish>
bool with_carry(const LevelRows& rows, std::size_t n_words, const Finish& finish) {
  const std::size_t n = rows.lines.size();
  if (n <= 8) return for_each_sum<kBits, 3>(rows, n_words, finish);
  if (n <= 64) return for_each_sum<kBits, 6>(rows, n_words, finish);
  return for_each_sum<kBits, 16>(rows, n_words, finish);
}

template <class Finish>
bool with_bits(const LevelRows& rows, std::size_t n_words, const Finish& finish) {
  return with_level_bits(rows.shape.bits,
                         [&](auto bits) { return with_carry<bits>(rows, n_words, finish); });
}

bool signs_of_sums(const LevelRows& rows, const SharedBits& ties,
                   std::span<std::uint64_t> positive) {
  return with_bits(rows, positive.size(),
                   [=, &ties](auto d, auto above, auto equal, std::size_t k) {
                     if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Eq(equal, hn::Zero(d))))) {
                       above = hn::Or(above, bits_of_ties(d, equal, ties, k));
                     }
                     hn::StoreU(above, d, positive.data() + k);
                   });
}

bool ternary_signs_of_sums(const LevelRows& rows, std::span<std::uint64_t> positive,
                           std::span<std::uint64_t> nonzero) {
  return with_bits(rows, positive.size(), [=](auto d, auto above, auto equal, std::size_t k) {
    hn::StoreU(above, d, positive.data() + k);
    hn::StoreU(hn::Not(equal), d, nonzero.data() + k);
  });
}

void signs_of_ints(std::span<const std::int32_t> sums, const SharedBits& ties,
                   std::span<std::uint64_t> positive, std::span<std::uint64_t> nonzero) {
  for (std::size_t k = 0; k < positive.size(); ++k) {
    const std::size_t n = std::min<std::size_t>(64, sums.size() - 64 * k);
    const std::int32_t* s = sums.data() + 64 * k;
    std::uint64_t above = 0, zero = 0;
    for_each_vector(n, {}, [&](auto d, std::size_t i) HWY_ATTR {
      const hn::RebindToSigned<decltype(d)> di;
      const auto v = hn::LoadU(di, s + i), none = hn::Zero(di);
      above |= mask_bits(d, hn::RebindMask(d, hn::Gt(v, none))) << i;
      zero |= mask_bits(d, hn::RebindMask(d, hn::Eq(v, none))) << i;
    });
    if (nonzero.empty() && zero != 0) above |= zero & ties.at(k);
    positive[k] = above;
    if (!nonzero.empty()) nonzero[k] = ~zero;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(signs_of_sums);
HWY_EXPORT(ternary_signs_of_sums);
HWY_EXPORT(signs_of_ints);

bool vote_levels(const LevelRows& rows, const SharedBits& ties,
                 std::span<std::uint64_t> positive) noexcept {
  if (rows.lines.empty()) return std::fill(positive.begin(), positive.end(), 0), true;
  return PRIDE_DISPATCH(signs_of_sums)(rows, ties, positive);
}

bool vote_levels_ternary(const LevelRows& rows, std::span<std::uint64_t> positive,
                         std::span<std::uint64_t> nonzero) noexcept {
  if (rows.lines.empty()) {
    std::fill(positive.begin(), positive.end(), 0);
    std::fill(nonzero.begin(), nonzero.end(), 0);
    return true;
  }
  return PRIDE_DISPATCH(ternary_signs_of_sums)(rows, positive, nonzero);
}

void vote_sums(std::span<const std::int32_t> sums, const SharedBits& ties,
               std::span<std::uint64_t> positive, std::span<std::uint64_t> nonzero) noexcept {
  PRIDE_DISPATCH(signs_of_ints)(sums, ties, positive, nonzero);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
