// add_planes, vote_planes and vote_planes_ternary: arithmetic on numbers in bit planes.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/planes.h"

#include <algorithm>

#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/planes.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/bit_slices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Calls body(d, k) for vectors of words, then for single ones.
template <class Body>
HWY_INLINE void for_each_words(std::size_t n_words, const Body& body) {
  const WordsTag d;
  const std::size_t whole = n_words - n_words % hn::Lanes(d);
  for (std::size_t k = 0; k < whole; k += hn::Lanes(d)) body(d, k);
  for (std::size_t k = whole; k < n_words; ++k) body(OneWordTag(), k);
}

void add(Planes more, std::size_t n_words, MutablePlanes sum) {
  for_each_words(n_words, [=](auto d, std::size_t k) HWY_ATTR {
    auto carry = hn::Zero(d);
    for (std::size_t p = 0; p < sum.n; ++p) {
      std::uint64_t* at = sum.words.data() + p * sum.stride + k;
      const auto old = hn::LoadU(d, at);
      auto digit = old, next = carry;
      if (p < more.n) {
        full_add(old, hn::LoadU(d, more.words.data() + p * more.stride + k), carry, digit, next);
      } else {
        digit = hn::Xor(old, carry);
        next = hn::And(old, carry);
      }
      hn::StoreU(digit, d, at);
      carry = next;
    }
  });
}

// `compare` of planes in memory.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Compared<V> compare_at(D d, const Planes& planes, std::size_t k, std::size_t threshold) {
  Compared<V> result{hn::Zero(d), hn::Not(hn::Zero(d))};
  for (std::size_t p = planes.n; p-- > 0;) {
    const V plane = hn::LoadU(d, planes.words.data() + p * planes.stride + k);
    if ((threshold >> p) & 1) {
      result.equal = hn::And(result.equal, plane);
    } else {
      result.above = hn::Or(result.above, hn::And(result.equal, plane));
      result.equal = hn::AndNot(plane, result.equal);
    }
  }
  return result;
}

void majority_of(Planes counts, std::size_t present, const SharedBits& ties,
                 std::span<std::uint64_t> positive) {
  for_each_words(positive.size(), [=, &ties](auto d, std::size_t k) HWY_ATTR {
    const auto half = compare_at(d, counts, k, present / 2);
    auto result = half.above;
    if (present % 2 == 0) result = hn::Or(result, bits_of_ties(d, half.equal, ties, k));
    hn::StoreU(result, d, positive.data() + k);
  });
}

void ternary_majority_of(Planes counts, std::size_t present, std::span<std::uint64_t> positive,
                         std::span<std::uint64_t> nonzero) {
  const bool can_tie = present % 2 == 0;
  for_each_words(positive.size(), [=](auto d, std::size_t k) HWY_ATTR {
    const auto half = compare_at(d, counts, k, present / 2);
    hn::StoreU(half.above, d, positive.data() + k);
    hn::StoreU(hn::Not(can_tie ? half.equal : hn::Zero(d)), d, nonzero.data() + k);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(add);
HWY_EXPORT(majority_of);
HWY_EXPORT(ternary_majority_of);

void add_planes(Planes more, std::size_t n_words, MutablePlanes sum) noexcept {
  PRIDE_DISPATCH(add)(more, n_words, sum);
}

void vote_planes(Planes counts, int present, const SharedBits& ties,
                 std::span<std::uint64_t> positive) noexcept {
  if (present == 0) return std::fill(positive.begin(), positive.end(), 0), void();
  PRIDE_DISPATCH(majority_of)
  (counts, static_cast<std::size_t>(present), ties, positive);
}

void vote_planes_ternary(Planes counts, int present, std::span<std::uint64_t> positive,
                         std::span<std::uint64_t> nonzero) noexcept {
  PRIDE_DISPATCH(ternary_majority_of)
  (counts, static_cast<std::size_t>(present), positive, nonzero);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
