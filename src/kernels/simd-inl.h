// Helpers of the vector code, compiled once for each target: masks to bits and back.
// SPDX-License-Identifier: Apache-2.0
#if defined(PRIDE_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRIDE_KERNELS_SIMD_INL_H_
#undef PRIDE_KERNELS_SIMD_INL_H_
#else
#define PRIDE_KERNELS_SIMD_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/kernels.h"

// 0 where the target is Highway's one-lane or emulated fallback: such kernels run plain code.
#undef PRIDE_SIMD
#define PRIDE_SIMD (HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128)

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little, "packed bits are stored as bytes");

// The hardware's prefetcher stops at the end of a 4 KiB page. At the start of a page, this
// prefetches the first two lines of the next page, which restarts the prefetcher there. `bytes`:
// processed from `at` before the next call. Measured in docs/kernels.md; prefetches cannot fault.
HWY_INLINE void prefetch_next_page(const float* at, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096, kLine = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (HWY_LIKELY(address % kPage >= bytes)) return;
  const char* next = reinterpret_cast<const char*>(at) + (kPage - address % kPage);
  hwy::Prefetch(next);
  hwy::Prefetch(next + kLine);
}

// For spans that are only read: the lines 2 KiB ahead of the `bytes` that start at `at`.
HWY_INLINE void prefetch_ahead(const float* at, std::size_t bytes) {
  constexpr std::uintptr_t kAhead = 2048, kLine = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(at) + kAhead;
  for (std::size_t i = 0; i < bytes; i += kLine) {
    hwy::Prefetch(reinterpret_cast<const char*>(address + i));
  }
}

// At most 16 lanes, so that a word of 64 coordinates is always whole vectors.
using FloatTag = hn::CappedTag<float, PRIDE_SIMD ? 16 : 1>;
using OneFloatTag = hn::CappedTag<float, 1>;

// Calls body(d, i) for the coordinates i, i + 1, ... of each vector of n, then for single ones:
// a formula is written once. `streams` are prefetched; a body without long streams gives none.
template <class Body>
HWY_INLINE void for_each_vector(std::size_t n, std::initializer_list<const float*> streams,
                                const Body& body) {
  const FloatTag d;
  for (std::size_t k = 0; k < n / 64; ++k) {
    for (const float* stream : streams) prefetch_next_page(stream + 64 * k, 64 * sizeof(float));
    HWY_UNROLL(16)
    for (std::size_t j = 0; j < 64; j += hn::Lanes(d)) body(d, 64 * k + j);
  }
  std::size_t i = n - n % 64;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) body(d, i);
  for (; i < n; ++i) body(OneFloatTag(), i);
}

// a*x + b*y
template <class D>
HWY_INLINE hn::Vec<D> blend_of(D d, hn::Vec<D> x, hn::Vec<D> y, float a, float b) {
  return hn::Add(hn::Mul(hn::Set(d, a), x), hn::Mul(hn::Set(d, b), y));
}

// Neither NaN nor Inf: a comparison with NaN is false.
template <class D>
HWY_INLINE hn::Mask<D> is_finite(D d, hn::Vec<D> x) {
  return hn::Le(hn::Abs(x), hn::Set(d, hwy::HighestValue<float>()));
}

// Lane i of the mask as bit i.
template <class D>
HWY_INLINE std::uint64_t mask_bits(D d, hn::Mask<D> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  if constexpr (hn::MaxLanes(D()) <= 8) return bytes[0];
  std::uint16_t low;
  std::memcpy(&low, bytes, sizeof(low));
  return low;
}

// Lane i of the result is bit i of `bits`.
template <class D>
HWY_INLINE hn::Mask<D> mask_of(D d, std::uint64_t bits) {
  std::uint8_t bytes[8];
  std::memcpy(bytes, &bits, sizeof(bits));
  return hn::LoadMaskBits(d, bytes);
}

// The same for the packed bits of coordinates i, i + 1, ...
template <class D>
HWY_INLINE hn::Mask<D> mask_at(D d, const std::uint64_t* words, std::size_t i) {
  return mask_of(d, words[i / 64] >> (i % 64));
}

// +value where the bit is 1, else -value.
template <class D>
HWY_INLINE hn::Vec<D> signed_value(D d, const std::uint64_t* words, std::size_t i, float value) {
  return hn::IfThenElse(mask_at(d, words, i), hn::Set(d, value), hn::Set(d, -value));
}

// Numbers c in bit planes, as the floats of factor*c + offset.
template <class D>
HWY_INLINE hn::Vec<D> number_at(D d, const std::uint64_t* planes, std::size_t n_planes,
                                std::size_t stride, std::size_t i, std::int32_t factor,
                                std::int32_t offset) {
  const hn::RebindToSigned<D> di;
  auto sum = hn::Set(di, offset);
  for (std::size_t p = 0; p < n_planes; ++p) {
    const auto mask = hn::RebindMask(di, mask_at(d, planes + p * stride, i));
    sum = hn::Add(sum, hn::IfThenElseZero(mask, hn::Set(di, factor << p)));
  }
  return hn::ConvertTo(d, sum);
}

// A decay with one factor, which need not look at signs.
struct OneFactor {
  float factor;
};

// Calls body(decay), with OneFactor if the factors are equal: in the cache a look at signs takes as
// long as the rest of a step by signs.
HWY_INLINE void with_decay(Decay decay, auto&& body) {
  if (decay.same == decay.opposite) return body(OneFactor{decay.same});
  body(decay);
}

// x times Decay::of(x, change), before `change` is subtracted
template <class D>
HWY_INLINE hn::Vec<D> decayed(D d, hn::Vec<D> x, OneFactor decay, hn::Vec<D>) {
  return hn::Mul(x, hn::Set(d, decay.factor));
}
template <class D>
HWY_INLINE hn::Vec<D> decayed(D d, hn::Vec<D> x, Decay decay, hn::Vec<D> change) {
  const auto zero = hn::Zero(d);
  const auto differ = hn::Xor(hn::Lt(x, zero), hn::Lt(change, zero));
  const auto opposite = hn::And(differ, hn::Ne(change, zero));
  return hn::Mul(x, hn::IfThenElse(opposite, hn::Set(d, decay.opposite), hn::Set(d, decay.same)));
}

// x*decay - lr*change, for x in memory
template <class D>
HWY_INLINE hn::Vec<D> stepped(D d, const float* x, auto decay, float lr, hn::Vec<D> change) {
  const auto kept = decayed(d, hn::LoadU(d, x), decay, change);
  return hn::Sub(kept, hn::Mul(hn::Set(d, lr), change));
}

// u*inv, kept within -largest..largest.
template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, hn::Vec<D> u, float inv, int largest) {
  const auto limit = hn::Set(d, static_cast<float>(largest));
  return hn::Max(hn::Neg(limit), hn::Min(hn::Mul(u, hn::Set(d, inv)), limit));
}

template <class D>
HWY_INLINE void store_levels(D, hn::Vec<hn::RebindToSigned<D>> q, std::int8_t* out) {
  const hn::Rebind<std::int8_t, D> d8;
  hn::StoreU(hn::DemoteTo(d8, q), d8, out);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
