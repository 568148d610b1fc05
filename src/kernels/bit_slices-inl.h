// Counting bits by position ("bit slices"), compiled once for each target: plane p of a group of
// words holds bit p of every coordinate's count, so one logic operation counts in all lanes.
// SPDX-License-Identifier: Apache-2.0
#if defined(PRIDE_KERNELS_BIT_SLICES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRIDE_KERNELS_BIT_SLICES_INL_H_
#undef PRIDE_KERNELS_BIT_SLICES_INL_H_
#else
#define PRIDE_KERNELS_BIT_SLICES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Rows = std::span<const std::uint64_t* const>;
using WordsTag = hn::CappedTag<std::uint64_t, 8>;
using OneWordTag = hn::CappedTag<std::uint64_t, 1>;

// sum + 2 * carry = a + b + c in every bit. `sum` may be one of the inputs.
template <class V>
HWY_INLINE void full_add(V a, V b, V c, V& sum, V& carry) {
  const V differ = hn::Xor(a, b);
  sum = hn::Xor(differ, c);
  carry = hn::OrAnd(hn::And(a, b), differ, c);
}

// planes += carry * 2^first.
template <std::size_t kPlanes, class V>
HWY_INLINE void ripple(std::size_t first, V carry, V (&planes)[kPlanes]) {
  for (std::size_t p = first; p < kPlanes; ++p) {
    const V next = hn::And(planes[p], carry);
    planes[p] = hn::Xor(planes[p], carry);
    carry = next;
  }
}

// planes += the eight rows that start at row r, at word `at`: a tree of full adders, so that only
// one carry in eight rows reaches the upper planes (Harley and Seal's counter).
template <std::size_t kPlanes, class D, class V = hn::Vec<D>>
HWY_INLINE void add_eight(D d, Rows rows, std::size_t r, std::size_t at, V (&planes)[kPlanes]) {
  const auto row = [&](std::size_t i) { return hn::LoadU(d, rows[r + i] + at); };
  V twos_a, twos_b, fours_a, fours_b, eights;
  full_add(planes[0], row(0), row(1), planes[0], twos_a);
  full_add(planes[0], row(2), row(3), planes[0], twos_b);
  full_add(planes[1], twos_a, twos_b, planes[1], fours_a);
  full_add(planes[0], row(4), row(5), planes[0], twos_a);
  full_add(planes[0], row(6), row(7), planes[0], twos_b);
  full_add(planes[1], twos_a, twos_b, planes[1], fours_b);
  full_add(planes[2], fours_a, fours_b, planes[2], eights);
  ripple(3, eights, planes);
}

// planes += all rows at word `at`. REQUIRES: the sums stay below 2^kPlanes.
template <std::size_t kPlanes, class D, class V = hn::Vec<D>>
HWY_INLINE void add_rows(D d, Rows rows, std::size_t at, V (&planes)[kPlanes]) {
  std::size_t r = 0;
  if constexpr (kPlanes > 3) {
    for (; r + 8 <= rows.size(); r += 8) add_eight(d, rows, r, at, planes);
  }
  for (; r + 2 <= rows.size(); r += 2) {
    V carry;
    full_add(planes[0], hn::LoadU(d, rows[r] + at), hn::LoadU(d, rows[r + 1] + at), planes[0],
             carry);
    ripple(1, carry, planes);
  }
  if (r < rows.size()) ripple(0, hn::LoadU(d, rows[r] + at), planes);
}

// Mask of counts above, or equal to, a threshold.
template <class V>
struct Compared {
  V above, equal;
};

template <std::size_t kPlanes, class D, class V = hn::Vec<D>>
HWY_INLINE Compared<V> compare(D d, const V (&planes)[kPlanes], std::size_t threshold) {
  Compared<V> result{hn::Zero(d), hn::Not(hn::Zero(d))};
  for (std::size_t p = kPlanes; p-- > 0;) {
    if ((threshold >> p) & 1) {
      result.equal = hn::And(result.equal, planes[p]);
    } else {
      result.above = hn::Or(result.above, hn::And(result.equal, planes[p]));
      result.equal = hn::AndNot(planes[p], result.equal);
    }
  }
  return result;
}

// The bits of ties in words k, k + 1, ...: of the words that have one, else 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V bits_of_ties(D d, V tied, const SharedBits& ties, std::size_t k) {
  HWY_ALIGN std::uint64_t words[8];
  hn::Store(tied, d, words);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    if (words[i] != 0) words[i] &= ties.at(k + i);
  }
  return hn::Load(d, words);
}

// For few rows: adds all rows at one vector of words, then moves to the next vector.
template <std::size_t kPlanes, class D, class Finish>
HWY_INLINE void count_by_words(D d, Rows rows, std::size_t begin, std::size_t end,
                               const Finish& finish) {
  for (std::size_t k = begin; k < end; k += hn::Lanes(d)) {
    hn::Vec<D> planes[kPlanes];
    for (auto& plane : planes) plane = hn::Zero(d);
    add_rows<kPlanes>(d, rows, k, planes);
    finish(d, planes, k);
  }
}

// Words of a row that count_by_rows reads at a time: long enough for the hardware to prefetch,
// short enough for the planes to stay in the L1 cache.
inline constexpr std::size_t kChunkWords = 256;

// For many rows: adds eight rows at a time over a chunk of words, with the planes on the stack. If
// all rows were read for each vector, rows a power of two apart would evict each other from caches.
template <std::size_t kPlanes, class D, class Finish>
HWY_INLINE void count_by_rows(D d, Rows rows, std::size_t begin, std::size_t end,
                              const Finish& finish) {
  HWY_ALIGN std::uint64_t buffer[kPlanes][kChunkWords];
  hn::Vec<D> planes[kPlanes];
  for (; begin < end; begin += kChunkWords) {
    const std::size_t n = std::min(kChunkWords, end - begin);
    for (std::size_t r = 0; r < rows.size(); r += 8) {
      const Rows group = rows.subspan(r, std::min<std::size_t>(8, rows.size() - r));
      const bool last = r + 8 >= rows.size();
      for (std::size_t k = 0; k < n; k += hn::Lanes(d)) {
        for (std::size_t p = 0; p < kPlanes; ++p) {
          planes[p] = r == 0 ? hn::Zero(d) : hn::Load(d, buffer[p] + k);
        }
        add_rows<kPlanes>(d, group, begin + k, planes);
        if (last) {
          finish(d, planes, begin + k);
        } else {
          for (std::size_t p = 0; p < kPlanes; ++p) hn::Store(planes[p], d, buffer[p] + k);
        }
      }
    }
  }
}

template <std::size_t kPlanes, class Finish>
void count_with(Rows rows, std::size_t n_words, const Finish& finish) {
  const WordsTag d;
  const std::size_t whole = n_words - n_words % hn::Lanes(d);
  if constexpr (kPlanes > 4) {
    count_by_rows<kPlanes>(d, rows, 0, whole, finish);
  } else {
    count_by_words<kPlanes>(d, rows, 0, whole, finish);
  }
  count_by_words<kPlanes>(OneWordTag(), rows, whole, n_words, finish);
}

// Calls finish(d, planes, k) with the counts of +1 at words k, k + 1, ... (as many as d has lanes)
// for all n_words. `planes` is an array of 2 or more vectors, enough for counts of rows.size().
template <class Finish>
void for_each_count(Rows rows, std::size_t n_words, const Finish& finish) {
  switch (std::bit_width(rows.size())) {
    case 0:
    case 1:
    case 2:
      return count_with<2>(rows, n_words, finish);
    case 3:
      return count_with<3>(rows, n_words, finish);
    case 4:
      return count_with<4>(rows, n_words, finish);
    case 5:
      return count_with<5>(rows, n_words, finish);
    case 6:
      return count_with<6>(rows, n_words, finish);
    case 7:
      return count_with<7>(rows, n_words, finish);
    case 8:
    case 9:
    case 10:
      return count_with<10>(rows, n_words, finish);
    default:
      return count_with<16>(rows, n_words, finish);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
