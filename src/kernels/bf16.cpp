// to_float and to_bf16 on the bits: bfloat16 instructions differ in their handling of denormals.
// SPDX-License-Identifier: Apache-2.0
#include "pride/bf16.h"

#include <algorithm>
#include <bit>

#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

constexpr std::uint32_t kQuietBit = 0x00400000;

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

// adds just under half of the last kept place, plus that place's bit: ties go to even
HWY_INLINE std::uint16_t rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>((bits | kQuietBit) >> 16);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void narrow(const float* in, BFloat16* out, std::size_t n) {
  auto* bits_out = reinterpret_cast<std::uint16_t*>(out);
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, in + i);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto sum = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
    const auto quiet = hn::Or(bits, hn::Set(du, kQuietBit));
    // not Ne, whose result for NaN differs between instruction sets
    const auto nan = hn::RebindMask(du, hn::Not(hn::Eq(value, value)));
    const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, sum));
    // at most 65535: the saturation of the signed conversion changes nothing
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, bits_out + i);
  }
#endif
  for (; i < n; ++i) bits_out[i] = rounded(in[i]);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride {
namespace kernels {

HWY_EXPORT(widen);
HWY_EXPORT(narrow);

}  // namespace kernels

void to_float(std::span<const BFloat16> in, std::span<float> out) noexcept {
  kernels::use_selected_isa();
  HWY_DYNAMIC_DISPATCH(kernels::widen)(in.data(), out.data(), in.size());
}

void to_bf16(std::span<const float> in, std::span<BFloat16> out) noexcept {
  kernels::use_selected_isa();
  HWY_DYNAMIC_DISPATCH(kernels::narrow)(in.data(), out.data(), in.size());
}

}  // namespace pride
#endif  // HWY_ONCE
