// The kernels of scaled_signs.h, and its calls: compression to signs and a scale with error
// feedback, the mean of the ranks' signs, and Adam's step on it.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/scaled_signs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/blocks.h"
#include "kernels/isa.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scaled_signs.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// keep*m + take*g
template <class D>
HWY_INLINE hn::Vec<D> blended(D d, const float* g, const float* m, const Feedback& f) {
  const auto kept = hn::Mul(hn::Set(d, f.keep), hn::LoadU(d, m));
  return hn::Add(kept, hn::Mul(hn::Set(d, f.take), hn::LoadU(d, g)));
}

void accumulate(const float* g, const float* m, const float* e, const Feedback& f,
                std::span<float> p) {
  for_each_vector(p.size(), {g, m, e}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto u = hn::Mul(hn::Set(d, f.rate), blended(d, g + i, m + i, f));
    hn::StoreU(hn::Add(u, hn::LoadU(d, e + i)), d, p.data() + i);
  });
}

void keep(const float* g, const Feedback& f, const std::uint64_t* bits, float scale, float* m,
          std::span<float> e) {
  for_each_vector(e.size(), {g, m, e.data()}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto u = blended(d, g + i, m + i, f);
    const auto p = hn::Add(hn::Mul(hn::Set(d, f.rate), u), hn::LoadU(d, e.data() + i));
    hn::StoreU(hn::Sub(p, signed_value(d, bits, i, scale)), d, e.data() + i);
    hn::StoreU(u, d, m + i);
  });
}

void remainder(const float* p, const std::uint64_t* bits, float scale, std::span<float> e) {
  for_each_vector(e.size(), {p, e.data()}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto sent = signed_value(d, bits, i, scale);
    hn::StoreU(hn::Sub(hn::LoadU(d, p + i), sent), d, e.data() + i);
  });
}

void adam_step_of_signs(const std::uint64_t* bits, float scale, const AdamScalars& a,
                        const float* v, float* m, std::span<float> x) {
  for_each_vector(x.size(), {v, m, x.data()}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto mi = signed_value(d, bits, i, scale), vi = hn::LoadU(d, v + i);
    const auto root = hn::Div(hn::Sqrt(vi), hn::Set(d, a.sqrt_bias2));
    const auto adam =
        hn::Div(hn::Mul(hn::Set(d, a.step_size), mi), hn::Add(root, hn::Set(d, a.eps)));
    const auto change = hn::IfThenZeroElse(hn::Eq(vi, hn::Zero(d)), adam);
    const auto kept = decayed(d, hn::LoadU(d, x.data() + i), a.decay, change);
    hn::StoreU(mi, d, m + i);
    hn::StoreU(hn::Sub(kept, change), d, x.data() + i);
  });
}

// Word k of n coordinates.
HWY_INLINE std::uint64_t signs_of_word(const float* p, std::size_t n, const SharedBits& zeros,
                                       std::size_t k) {
  std::uint64_t bits = 0, zero_bits = 0;
  for_each_vector(n, {}, [&](auto d, std::size_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, p + i), nought = hn::Zero(d);
    bits |= mask_bits(d, hn::Gt(v, nought)) << i;
    zero_bits |= mask_bits(d, hn::Eq(v, nought)) << i;
  });
  if (HWY_UNLIKELY(zero_bits != 0)) bits |= zero_bits & zeros.at(k);
  return bits;
}

void signs_of(std::span<const float> p, const SharedBits& zeros, std::span<std::uint64_t> bits) {
  const std::size_t whole = p.size() / 64;
  for (std::size_t k = 0; k < whole; ++k) bits[k] = signs_of_word(p.data() + 64 * k, 64, zeros, k);
  if (whole == bits.size()) return;
  bits[whole] = signs_of_word(p.data() + 64 * whole, p.size() % 64, zeros, whole);
}

// kVectors of coordinates, whose sums stay in registers during the loop over rows.
template <std::size_t kVectors, class D>
HWY_INLINE void mean_at(D d, std::span<const ScaledRow> rows, std::size_t i, float divisor,
                        const float* e, float* out) {
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sums[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    sums[v] = signed_value(d, rows[0].bits, i + v * lanes, rows[0].scale);
  }
  for (const ScaledRow& row : rows.subspan(1)) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], signed_value(d, row.bits, i + v * lanes, row.scale));
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v, i += lanes) {
    const auto mean = hn::Div(sums[v], hn::Set(d, divisor));
    hn::StoreU(hn::Add(mean, hn::LoadU(d, e + i)), d, out + i);
  }
}

void mean_of(std::span<const ScaledRow> rows, float divisor, const float* e, std::span<float> out) {
  constexpr std::size_t kVectors = 64 / hn::MaxLanes(FloatTag());
  std::size_t i = 0;
  for (; i + 64 <= out.size(); i += 64) {
    mean_at<kVectors>(FloatTag(), rows, i, divisor, e, out.data());
  }
  for (; i < out.size(); ++i) mean_at<1>(OneFloatTag(), rows, i, divisor, e, out.data());
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(accumulate);
HWY_EXPORT(keep);
HWY_EXPORT(remainder);
HWY_EXPORT(adam_step_of_signs);
HWY_EXPORT(signs_of);
HWY_EXPORT(mean_of);

void feedback(std::span<const float> g, std::span<const float> m, std::span<const float> e,
              const Feedback& f, std::span<float> p) noexcept {
  PRIDE_DISPATCH(accumulate)(g.data(), m.data(), e.data(), f, p);
}

void keep_feedback(std::span<const float> g, const Feedback& f, std::span<const std::uint64_t> bits,
                   float scale, std::span<float> m, std::span<float> e) noexcept {
  PRIDE_DISPATCH(keep)(g.data(), f, bits.data(), scale, m.data(), e);
}

void keep_remainder(std::span<const float> p, std::span<const std::uint64_t> bits, float scale,
                    std::span<float> e) noexcept {
  PRIDE_DISPATCH(remainder)(p.data(), bits.data(), scale, e);
}

void adam_signs(std::span<const std::uint64_t> bits, float scale, const AdamScalars& a,
                std::span<const float> v, std::span<float> m, std::span<float> x) noexcept {
  PRIDE_DISPATCH(adam_step_of_signs)(bits.data(), scale, a, v.data(), m.data(), x);
}

void pack_signs(std::span<const float> p, const SharedBits& zeros,
                std::span<std::uint64_t> bits) noexcept {
  PRIDE_DISPATCH(signs_of)(p, zeros, bits);
}

float compress(std::span<const float> p, Norm norm, const SharedBits& zeros,
               std::span<std::uint64_t> bits) noexcept {
  pack_signs(p, zeros, bits);
  const auto n = static_cast<double>(p.size());
  const auto scale =
      static_cast<float>(norm == Norm::kMeanAbs ? sum_abs(p) / n : std::sqrt(sum_squares(p) / n));
  // processors make NaNs of different bits, and frames with the scale are compared
  return std::isnan(scale) ? std::numeric_limits<float>::quiet_NaN() : scale;
}

void mean_of_signs(std::span<const ScaledRow> rows, int divisor, std::span<const float> e,
                   std::span<float> out) noexcept {
  PRIDE_DISPATCH(mean_of)(rows, static_cast<float>(divisor), e.data(), out);
}

void PackSigns::run() const noexcept {
  if (!is_faulty(guard)) return pack_signs(p, zeros, bits);
  std::ranges::fill(bits, 0);
  fault.note();
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
