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

#include "hwy/cache_control.h"
#include "hwy/highway.h"

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

#if PRIDE_SIMD
// At most 16 lanes, so that a word of 64 coordinates is always whole vectors.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
using FloatMask = hn::Mask<FloatTag>;

// Lane i of the mask as bit i.
HWY_INLINE std::uint64_t mask_bits(FloatTag d, FloatMask mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  if constexpr (hn::MaxLanes(FloatTag()) <= 8) return bytes[0];
  std::uint16_t low;
  std::memcpy(&low, bytes, sizeof(low));
  return low;
}

// Lane i of the result is bit i of `bits`.
HWY_INLINE FloatMask mask_of(FloatTag d, std::uint64_t bits) {
  std::uint8_t bytes[8];
  std::memcpy(bytes, &bits, sizeof(bits));
  return hn::LoadMaskBits(d, bytes);
}
#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
