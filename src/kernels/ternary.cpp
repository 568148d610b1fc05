// ternarise and sums_to_floats, and the reductions before them.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ternary.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/isa.h"
#include "kernels/value_calls.h"
#include "pride/random_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ternary.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/philox-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

double sum_partials(std::span<const float> x) {
  std::array<double, 16> partial{};
  std::size_t i = 0;
#if PRIDE_SIMD && HWY_HAVE_FLOAT64
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  for (; i + 1024 <= x.size(); i += 1024) {
    for (std::size_t p = 0; p < 16; p += hn::Lanes(dd)) {
      auto total = hn::LoadU(dd, partial.data() + p);
      for (std::size_t j = p; j < 1024; j += 16) {
        total = hn::Add(total, hn::PromoteTo(dd, hn::LoadU(df, x.data() + i + j)));
      }
      hn::StoreU(total, dd, partial.data() + p);
    }
  }
#endif
  for (; i < x.size(); ++i) partial[i % 16] += static_cast<double>(x[i]);
  for (std::size_t width = 1; width < 16; width *= 2) {
    for (std::size_t p = 0; p < 16; p += 2 * width) partial[p] += partial[p + width];
  }
  return partial[0];
}

float largest(std::span<const float> x) {
  float out = 0;
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  auto most = hn::Zero(d);
  for (; i + hn::Lanes(d) <= x.size(); i += hn::Lanes(d)) {
    const auto a = hn::Abs(hn::LoadU(d, x.data() + i));
    most = hn::IfThenElse(hn::Gt(a, most), a, most);
  }
  out = hn::GetLane(hn::MaxOfLanes(d, most));
#endif
  for (; i < x.size(); ++i) out = std::abs(x[i]) > out ? std::abs(x[i]) : out;
  return out;
}

struct TernaryWord {
  std::uint64_t plus = 0, minus = 0;
};

// One word of n <= 64 coordinates.
HWY_INLINE TernaryWord ternary_word(const float* g, std::size_t n, float limit, float scale,
                                    const std::uint32_t* random) {
  TernaryWord out;
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const WordTag dw;
  const hn::RebindToSigned<FloatTag> di;
  const auto zero = hn::Zero(d), vlimit = hn::Set(d, limit), vscale = hn::Set(d, scale);
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto x = hn::LoadU(d, g + i);
    const auto a = hn::Abs(x);
    const auto clipped = hn::IfThenElse(hn::Gt(a, vlimit), vlimit, a);
    const auto bits = hn::ShiftRight<8>(hn::LoadU(dw, random + i));
    const auto u = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, bits)), hn::Set(d, 0x1p-24f));
    const auto kept = hn::Lt(hn::Mul(u, vscale), clipped);
    out.plus |= mask_bits(d, hn::And(kept, hn::Gt(x, zero))) << i;
    out.minus |= mask_bits(d, hn::And(kept, hn::Lt(x, zero))) << i;
  }
#endif
  for (; i < n; ++i) {
    const float a = std::abs(g[i]), clipped = a > limit ? limit : a;
    const float u = static_cast<float>(random[i] >> 8) * 0x1p-24f;
    if (!(u * scale < clipped)) continue;
    out.plus |= std::uint64_t{g[i] > 0} << i;
    out.minus |= std::uint64_t{g[i] < 0} << i;
  }
  return out;
}

constexpr std::uint32_t kTernaryWords = 0x54470000u;

void ternary_words(std::span<const float> g, float limit, float scale, const PhiloxKey& key,
                   std::span<std::uint64_t> plus, std::span<std::uint64_t> not_minus) {
  alignas(64) std::uint32_t random[64];
  for (std::size_t k = 0; k < plus.size(); ++k) {
    const std::size_t n = std::min<std::size_t>(64, g.size() - 64 * k);
    philox_words(key, kTernaryWords, key.first_coord + 64 * k, random);
    const TernaryWord t = ternary_word(g.data() + 64 * k, n, limit, scale, random);
    const std::uint64_t used = n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
    plus[k] = t.plus;
    not_minus[k] = ~t.minus & used;
  }
}

void floats_of_sums(std::span<const std::uint64_t> planes, std::size_t n_planes, std::size_t stride,
                    int offset, int world, float scale, std::span<float> out) {
  const float fworld = static_cast<float>(world);
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  for (; i + 64 <= out.size(); i += 64) {
    for (std::size_t j = 0; j < 64; j += hn::Lanes(d)) {
      auto total = hn::Set(di, -offset);
      for (std::size_t p = 0; p < n_planes; ++p) {
        const auto mask = hn::RebindMask(di, mask_of(d, planes[p * stride + i / 64] >> j));
        total = hn::Add(total, hn::IfThenElseZero(mask, hn::Set(di, std::int32_t{1} << p)));
      }
      const auto mean = hn::Div(hn::ConvertTo(d, total), hn::Set(d, fworld));
      hn::StoreU(hn::Mul(hn::Set(d, scale), mean), d, out.data() + i + j);
    }
  }
#endif
  for (; i < out.size(); ++i) {
    int total = -offset;
    for (std::size_t p = 0; p < n_planes; ++p) {
      total += static_cast<int>((planes[p * stride + i / 64] >> (i % 64)) & 1) << p;
    }
    out[i] = scale * (static_cast<float>(total) / fworld);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(sum_partials);
HWY_EXPORT(largest);
HWY_EXPORT(ternary_words);
HWY_EXPORT(floats_of_sums);

double sum(std::span<const float> x) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(sum_partials)(x);
}

float max_abs(std::span<const float> x) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(largest)(x);
}

void ternarise(std::span<const float> g, float limit, float scale, const PhiloxKey& key,
               std::span<std::uint64_t> plus, std::span<std::uint64_t> not_minus) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(ternary_words)(g, limit, scale, key, plus, not_minus);
}

void sums_to_floats(std::span<const std::uint64_t> planes, std::size_t n_planes,
                    std::size_t plane_stride, int offset, int world, float scale,
                    std::span<float> out) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(floats_of_sums)(planes, n_planes, plane_stride, offset, world, scale, out);
}

void FindNonzero::run() const noexcept {
  if (max_abs(x) > 0) found.note();
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
