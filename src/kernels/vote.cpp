// vote, vote_ternary and count: the majority of packed signs, and bit planes of the number of +1.
// The kernels of planes.h: sums of such planes, and the majority from them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/planes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vote.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/bit_slices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Stores words k, k + 1, ... of the majority of `present`, from counts compared with half of them.
template <class D>
HWY_INLINE void store_majority(D d, const Compared<hn::Vec<D>>& half, std::size_t present,
                               const SharedBits& ties, std::size_t k, std::uint64_t* positive) {
  auto result = half.above;
  if (present % 2 == 0) result = hn::Or(result, bits_of_ties(d, half.equal, ties, k));
  hn::StoreU(result, d, positive + k);
}
template <class D>
HWY_INLINE void store_ternary(D d, const Compared<hn::Vec<D>>& half, std::size_t present,
                              std::size_t k, std::uint64_t* positive, std::uint64_t* nonzero) {
  hn::StoreU(half.above, d, positive + k);
  hn::StoreU(hn::Not(present % 2 == 0 ? half.equal : hn::Zero(d)), d, nonzero + k);
}

void majority(Rows rows, const SharedBits& ties, std::span<std::uint64_t> positive) {
  for_each_count(rows, positive.size(), [=, &ties](auto d, const auto& planes, std::size_t k) {
    store_majority(d, compare(d, planes, rows.size() / 2), rows.size(), ties, k, positive.data());
  });
}

void ternary_majority(Rows rows, std::span<std::uint64_t> positive, std::uint64_t* nonzero) {
  for_each_count(rows, positive.size(), [=](auto d, const auto& planes, std::size_t k) {
    const auto half = compare(d, planes, rows.size() / 2);
    store_ternary(d, half, rows.size(), k, positive.data(), nonzero);
  });
}

void count_planes(Rows rows, std::size_t n_words, std::size_t n_planes, std::uint64_t* planes) {
  for_each_count(rows, n_words, [=](auto d, const auto& counts, std::size_t k) {
    for (std::size_t p = 0; p < n_planes; ++p) {
      const bool counted = p < std::size(counts);
      hn::StoreU(counted ? counts[p] : hn::Zero(d), d, planes + p * n_words + k);
    }
  });
}

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
    store_majority(d, half, present, ties, k, positive.data());
  });
}

void ternary_majority_of(Planes counts, std::size_t present, std::span<std::uint64_t> positive,
                         std::uint64_t* nonzero) {
  for_each_words(positive.size(), [=](auto d, std::size_t k) HWY_ATTR {
    const auto half = compare_at(d, counts, k, present / 2);
    store_ternary(d, half, present, k, positive.data(), nonzero);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(majority);
HWY_EXPORT(ternary_majority);
HWY_EXPORT(count_planes);
HWY_EXPORT(add);
HWY_EXPORT(majority_of);
HWY_EXPORT(ternary_majority_of);

void vote(std::span<const std::uint64_t* const> rows, const SharedBits& ties,
          std::span<std::uint64_t> positive) noexcept {
  if (rows.empty()) return std::fill(positive.begin(), positive.end(), 0), void();
  PRIDE_DISPATCH(majority)(rows, ties, positive);
}

void vote_ternary(std::span<const std::uint64_t* const> rows, std::span<std::uint64_t> positive,
                  std::span<std::uint64_t> nonzero) noexcept {
  PRIDE_DISPATCH(ternary_majority)(rows, positive, nonzero.data());
}

void count(std::span<const std::uint64_t* const> rows, std::size_t n_words, std::size_t n_planes,
           std::span<std::uint64_t> planes) noexcept {
  PRIDE_DISPATCH(count_planes)(rows, n_words, n_planes, planes.data());
}

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
  (counts, static_cast<std::size_t>(present), positive, nonzero.data());
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
