// split and join of base/floats.h, on the bits.  Read and write 8 bytes per coordinate together.
// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "base/floats.h"
#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/halves.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

constexpr std::uint32_t kHalf = 0x8000, kLower = 0xFFFF, kQuiet = 0x00400000;
constexpr std::int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

void split_values(const float* x, std::uint16_t* upper, std::uint16_t* lower, std::size_t n) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(du, value);
    // not Ne, whose result for NaN differs between instruction sets
    const auto nan = hn::RebindMask(du, hn::Not(hn::Eq(value, value)));
    const auto high = hn::ShiftRight<16>(
        hn::IfThenElse(nan, hn::Or(bits, hn::Set(du, kQuiet)), hn::Add(bits, hn::Set(du, kHalf))));
    const auto low = hn::IfThenZeroElse(nan, hn::And(bits, hn::Set(du, kLower)));
    // at most 65535: the saturation of the signed conversion changes nothing
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, upper + i);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, low)), d16, lower + i);
  }
#endif
  for (; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    const bool nan = x[i] != x[i];
    upper[i] = static_cast<std::uint16_t>((nan ? bits | kQuiet : bits + kHalf) >> 16);
    lower[i] = static_cast<std::uint16_t>(nan ? 0 : bits & kLower);
  }
}

void join_values(const std::uint16_t* upper, const std::uint16_t* lower, float* x, std::size_t n) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto high = hn::ShiftLeft<16>(hn::PromoteTo(di, hn::LoadU(d16, upper + i)));
    const auto low = hn::PromoteTo(di, hn::LoadU(d16, lower + i));
    const auto rest = hn::ShiftRight<16>(hn::ShiftLeft<16>(low));  // its sign
    const auto magnitude = hn::And(high, hn::Set(di, kMagnitude));
    const auto beyond =
        hn::Or(hn::Lt(hn::Add(magnitude, rest), hn::Zero(di)),
               hn::And(hn::Eq(magnitude, hn::Set(di, kInfinity)), hn::Gt(rest, hn::Zero(di))));
    const auto bits = hn::Add(high, hn::IfThenZeroElse(beyond, rest));
    hn::StoreU(hn::BitCast(d, bits), d, x + i);
  }
#endif
  for (; i < n; ++i) {
    const auto high = static_cast<std::int32_t>(std::uint32_t{upper[i]} << 16);
    const std::int32_t rest = static_cast<std::int16_t>(lower[i]), magnitude = high & kMagnitude;
    const bool beyond = magnitude + rest < 0 || (magnitude == kInfinity && rest > 0);
    x[i] = std::bit_cast<float>(high + (beyond ? 0 : rest));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride {
namespace kernels {

HWY_EXPORT(split_values);
HWY_EXPORT(join_values);

}  // namespace kernels

void split(std::span<const float> x, std::uint16_t* upper, std::uint16_t* lower) noexcept {
  kernels::use_selected_isa();
  HWY_DYNAMIC_DISPATCH(kernels::split_values)(x.data(), upper, lower, x.size());
}

void join(const std::uint16_t* upper, const std::uint16_t* lower, std::span<float> x) noexcept {
  kernels::use_selected_isa();
  HWY_DYNAMIC_DISPATCH(kernels::join_values)(upper, lower, x.data(), x.size());
}

}  // namespace pride
#endif  // HWY_ONCE
