// Counting bits by position ("bit slices"), compiled once for each target: plane p of a group of
// words holds bit p of every coordinate's count, so one logic operation counts in all lanes.
// SPDX-License-Identifier: Apache-2.0
#if defined(PRIDE_KERNELS_BIT_SLICES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRIDE_KERNELS_BIT_SLICES_INL_H_
#undef PRIDE_KERNELS_BIT_SLICES_INL_H_
#else
#define PRIDE_KERNELS_BIT_SLICES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"

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

// planes = counts of +1 at word `at`. REQUIRES: rows.size() < 2^kPlanes.
template <std::size_t kPlanes, class D, class V = hn::Vec<D>>
HWY_INLINE void count_rows(D d, Rows rows, std::size_t at, V (&planes)[kPlanes]) {
  for (V& plane : planes) plane = hn::Zero(d);
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

// Where the count is above, or equal to, a threshold.
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

// Calls body.run<kPlanes>() with the smallest number of planes on offer that can hold n_rows.
template <class Body>
HWY_INLINE void with_planes(std::size_t n_rows, const Body& body) {
  switch (std::bit_width(n_rows)) {
    case 0:
    case 1:
    case 2:
      return body.template run<2>();
    case 3:
      return body.template run<3>();
    case 4:
      return body.template run<4>();
    case 5:
      return body.template run<5>();
    case 6:
      return body.template run<6>();
    case 7:
      return body.template run<7>();
    case 8:
    case 9:
    case 10:
      return body.template run<10>();
    default:
      return body.template run<16>();
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
