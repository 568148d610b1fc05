// ternarise and sums_to_floats.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ternary.h"

#include <algorithm>

#include "kernels/isa.h"
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

struct TernaryWord {
  std::uint64_t plus = 0, minus = 0;
};

// One word of n <= 64 coordinates.
HWY_INLINE TernaryWord ternary_word(const float* g, std::size_t n, float limit, float scale,
                                    const std::uint32_t* random) {
  TernaryWord out;
  for_each_vector(n, {}, [&](auto d, std::size_t i) HWY_ATTR {
    const auto x = hn::LoadU(d, g + i), a = hn::Abs(x), zero = hn::Zero(d);
    const auto vlimit = hn::Set(d, limit);
    const auto clipped = hn::IfThenElse(hn::Gt(a, vlimit), vlimit, a);
    const auto kept = hn::Lt(hn::Mul(unit_float(d, random + i), hn::Set(d, scale)), clipped);
    out.plus |= mask_bits(d, hn::And(kept, hn::Gt(x, zero))) << i;
    out.minus |= mask_bits(d, hn::And(kept, hn::Lt(x, zero))) << i;
  });
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
  for_each_vector(out.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto total = number_at(d, planes.data(), n_planes, stride, i, 1, -offset);
    const auto mean = hn::Div(total, hn::Set(d, static_cast<float>(world)));
    hn::StoreU(hn::Mul(hn::Set(d, scale), mean), d, out.data() + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(ternary_words);
HWY_EXPORT(floats_of_sums);

void ternarise(std::span<const float> g, float limit, float scale, const PhiloxKey& key,
               std::span<std::uint64_t> plus, std::span<std::uint64_t> not_minus) noexcept {
  PRIDE_DISPATCH(ternary_words)(g, limit, scale, key, plus, not_minus);
}

void sums_to_floats(std::span<const std::uint64_t> planes, std::size_t n_planes,
                    std::size_t plane_stride, int offset, int world, float scale,
                    std::span<float> out) noexcept {
  PRIDE_DISPATCH(floats_of_sums)(planes, n_planes, plane_stride, offset, world, scale, out);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
