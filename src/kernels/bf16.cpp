// to_float and to_bf16, split and join (base/floats.h), on the bits: bfloat16 instructions differ
// in their handling of denormals. split and join read and write 8 bytes a coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "pride/bf16.h"

#include <algorithm>
#include <bit>

#include "base/floats.h"
#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

constexpr std::uint32_t kQuietBit = 0x00400000, kHalf = 0x8000, kLower = 0xFFFF;
constexpr std::int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// The upper half of a float's rounded bits, or of a NaN's bits with the quiet bit set.
HWY_INLINE std::uint16_t upper_of(float value, std::uint32_t rounded) {
  if (value != value) rounded = std::bit_cast<std::uint32_t>(value) | kQuietBit;
  return static_cast<std::uint16_t>(rounded >> 16);
}

#if PRIDE_SIMD
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BitsVec = hn::Vec<BitsTag>;

// not Ne, whose result for NaN differs between instruction sets
HWY_INLINE hn::Mask<BitsTag> nan_of(FloatVec value) {
  return hn::RebindMask(BitsTag(), hn::Not(hn::Eq(value, value)));
}
HWY_INLINE BitsVec upper_of(FloatVec value, BitsVec rounded) {
  const auto quiet = hn::Or(hn::BitCast(BitsTag(), value), hn::Set(BitsTag(), kQuietBit));
  return hn::ShiftRight<16>(hn::IfThenElse(nan_of(value), quiet, rounded));
}
// REQUIRES: values up to 65535; then the signed conversion does not saturate.
HWY_INLINE void store_narrow(BitsVec values, std::uint16_t* out) {
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  const hn::RebindToSigned<FloatTag> di;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, values)), d16, out);
}
#endif

void widen(const BFloat16* in, float* out, std::size_t n) {
  const auto* bits = reinterpret_cast<const std::uint16_t*>(in);
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, bits + i)));
    hn::StoreU(hn::BitCast(d, wide), d, out + i);
  }
#endif
  for (; i < n; ++i) out[i] = std::bit_cast<float>(std::uint32_t{bits[i]} << 16);
}

void narrow(const float* in, BFloat16* out, std::size_t n) {
  auto* bits_out = reinterpret_cast<std::uint16_t*>(out);
  std::size_t i = 0;
  // adds just under half of the last kept place, plus that place's bit: ties go to even
#if PRIDE_SIMD
  const FloatTag d;
  const BitsTag du;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, in + i);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    store_narrow(upper_of(value, hn::Add(hn::Add(bits, hn::Set(du, kHalf - 1)), odd)),
                 bits_out + i);
  }
#endif
  for (; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(in[i]);
    bits_out[i] = upper_of(in[i], bits + (kHalf - 1) + ((bits >> 16) & 1));
  }
}

void split_values(const float* x, std::uint16_t* upper, std::uint16_t* lower, std::size_t n) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const BitsTag du;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(du, value);
    store_narrow(upper_of(value, hn::Add(bits, hn::Set(du, kHalf))), upper + i);
    store_narrow(hn::IfThenZeroElse(nan_of(value), hn::And(bits, hn::Set(du, kLower))), lower + i);
  }
#endif
  for (; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    upper[i] = upper_of(x[i], bits + kHalf);
    lower[i] = static_cast<std::uint16_t>(x[i] != x[i] ? 0 : bits & kLower);
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
    const auto rest = hn::ShiftRight<16>(hn::ShiftLeft<16>(low));  // sign extended
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

HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(split_values);
HWY_EXPORT(join_values);

}  // namespace kernels

void to_float(std::span<const BFloat16> in, std::span<float> out) noexcept {
  kernels::use_selected_isa();
  HWY_DYNAMIC_DISPATCH(kernels::widen)(in.data(), out.data(), in.size());
}

void to_bf16(std::span<const float> in, std::span<BFloat16> out) noexcept {
  kernels::use_selected_isa();
  HWY_DYNAMIC_DISPATCH(kernels::narrow)(in.data(), out.data(), in.size());
}

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
