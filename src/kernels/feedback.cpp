// feedback, keep_feedback and keep_remainder: the compressor's input with error feedback, and its
// residual. Bytes per coordinate: 16, 20.125 and 8.125.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/scaled_signs_scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/feedback.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
// keep*m + take*g, from coordinate i on.
HWY_INLINE FloatVec blended(const float* g, const float* m, const Feedback& f, std::size_t i) {
  const FloatTag d;
  const auto kept = hn::Mul(hn::Set(d, f.keep), hn::LoadU(d, m + i));
  return hn::Add(kept, hn::Mul(hn::Set(d, f.take), hn::LoadU(d, g + i)));
}

HWY_INLINE FloatVec signed_scale(std::uint64_t word, std::size_t i, float scale) {
  const FloatTag d;
  return hn::IfThenElse(mask_of(d, word >> i), hn::Set(d, scale), hn::Set(d, -scale));
}

HWY_INLINE void keep_word(const float* HWY_RESTRICT g, const Feedback& f, std::uint64_t word,
                          float scale, float* HWY_RESTRICT m, float* HWY_RESTRICT e) {
  const FloatTag d;
  const auto rate = hn::Set(d, f.rate);
  prefetch_next_page(g, 64 * sizeof(float));
  prefetch_next_page(m, 64 * sizeof(float));
  prefetch_next_page(e, 64 * sizeof(float));
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto u = blended(g, m, f, i);
    const auto p = hn::Add(hn::Mul(rate, u), hn::LoadU(d, e + i));
    hn::StoreU(hn::Sub(p, signed_scale(word, i, scale)), d, e + i);
    hn::StoreU(u, d, m + i);
  }
}

HWY_INLINE void remainder_word(const float* p, std::uint64_t word, float scale, float* e) {
  const FloatTag d;
  prefetch_next_page(p, 64 * sizeof(float));
  prefetch_next_page(e, 64 * sizeof(float));
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    hn::StoreU(hn::Sub(hn::LoadU(d, p + i), signed_scale(word, i, scale)), d, e + i);
  }
}
#endif

void accumulate(std::span<const float> g, std::span<const float> m, std::span<const float> e,
                const Feedback& f, std::span<float> p) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const std::size_t bytes = hn::Lanes(d) * sizeof(float);
  const auto rate = hn::Set(d, f.rate);
  for (; i + hn::Lanes(d) <= p.size(); i += hn::Lanes(d)) {
    prefetch_next_page(g.data() + i, bytes);
    prefetch_next_page(m.data() + i, bytes);
    prefetch_next_page(e.data() + i, bytes);
    const auto u = blended(g.data(), m.data(), f, i);
    hn::StoreU(hn::Add(hn::Mul(rate, u), hn::LoadU(d, e.data() + i)), d, p.data() + i);
  }
#endif
  scalar::feedback(g.data() + i, m.data() + i, e.data() + i, f, p.data() + i, p.size() - i);
}

void keep(std::span<const float> g, const Feedback& f, std::span<const std::uint64_t> bits,
          float scale, std::span<float> m, std::span<float> e) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= e.size(); at += 64) {
    keep_word(g.data() + at, f, bits[at / 64], scale, m.data() + at, e.data() + at);
  }
#endif
  for (; at < e.size(); at += 64) {
    const std::size_t n = std::min<std::size_t>(64, e.size() - at);
    scalar::keep_feedback_word(g.data() + at, f, bits[at / 64], scale, m.data() + at, e.data() + at,
                               n);
  }
}

void remainder(std::span<const float> p, std::span<const std::uint64_t> bits, float scale,
               std::span<float> e) {
  std::size_t at = 0;
#if PRIDE_SIMD
  for (; at + 64 <= e.size(); at += 64) {
    remainder_word(p.data() + at, bits[at / 64], scale, e.data() + at);
  }
#endif
  for (; at < e.size(); at += 64) {
    const std::size_t n = std::min<std::size_t>(64, e.size() - at);
    scalar::keep_remainder_word(p.data() + at, bits[at / 64], scale, e.data() + at, n);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(accumulate);
HWY_EXPORT(keep);
HWY_EXPORT(remainder);

void feedback(std::span<const float> g, std::span<const float> m, std::span<const float> e,
              const Feedback& f, std::span<float> p) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(accumulate)(g, m, e, f, p);
}

void keep_feedback(std::span<const float> g, const Feedback& f, std::span<const std::uint64_t> bits,
                   float scale, std::span<float> m, std::span<float> e) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(keep)(g, f, bits, scale, m, e);
}

void keep_remainder(std::span<const float> p, std::span<const std::uint64_t> bits, float scale,
                    std::span<float> e) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(remainder)(p, bits, scale, e);
}

// All data of a block stay in the L1 cache.
void Compress::run() const noexcept {
  alignas(64) std::array<float, kScaleBlock> widened, room;
  scales.for_blocks(m.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
    const auto p = std::span(room).first(n);
    feedback(or_zeros(g, at, n, widened), m.subspan(at, n), e.subspan(at, n), f, p);
    HashWords words = zeros;
    words.first_word += at / 64;
    scales.of[k] = compress(p, norm, words, bits.subspan(at / 64, words_for(n)));
    if (!std::isfinite(scales.of[k])) fault.note();
  });
}

void KeepFeedback::run() const noexcept {
  alignas(64) std::array<float, kScaleBlock> widened;
  scales.for_blocks(m.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
    keep_feedback(or_zeros(g, at, n, widened), f, bits.subspan(at / 64, words_for(n)), scales.of[k],
                  m.subspan(at, n), e.subspan(at, n));
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
