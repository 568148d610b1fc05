// to_float and to_bf16, split and join (base/floats.h), on the bits: bfloat16 instructions differ
// in their handling of denormals. split and join read and write 8 bytes a coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "pride/bf16.h"

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

template <class D>
using BitsTag = hn::RebindToUnsigned<D>;
template <class D>
using BitsVec = hn::Vec<BitsTag<D>>;
template <class D>
using HalfTag = hn::Rebind<std::uint16_t, D>;

// not Ne, whose result for NaN differs between instruction sets
template <class D>
HWY_INLINE hn::Mask<BitsTag<D>> nan_of(D, hn::Vec<D> value) {
  return hn::RebindMask(BitsTag<D>(), hn::Not(hn::Eq(value, value)));
}
// The upper half of a float's rounded bits, or of a NaN's bits with the quiet bit set.
template <class D>
HWY_INLINE BitsVec<D> upper_of(D d, hn::Vec<D> value, BitsVec<D> rounded) {
  const BitsTag<D> du;
  const auto quiet = hn::Or(hn::BitCast(du, value), hn::Set(du, kQuietBit));
  return hn::ShiftRight<16>(hn::IfThenElse(nan_of(d, value), quiet, rounded));
}
// REQUIRES: values up to 65535; then the signed conversion does not saturate.
template <class D>
HWY_INLINE void store_narrow(D, BitsVec<D> values, std::uint16_t* out) {
  const HalfTag<D> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D>(), values)), d16, out);
}

void widen(const BFloat16* in, float* out, std::size_t n) {
  const auto* bits = reinterpret_cast<const std::uint16_t*>(in);
  for_each_vector(n, {}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto half = hn::LoadU(HalfTag<decltype(d)>(), bits + i);
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(BitsTag<decltype(d)>(), half));
    hn::StoreU(hn::BitCast(d, wide), d, out + i);
  });
}

// Adds just under half of the last kept place, plus that place's bit: ties go to even.
void narrow(const float* in, BFloat16* out, std::size_t n) {
  auto* bits_out = reinterpret_cast<std::uint16_t*>(out);
  for_each_vector(n, {}, [=](auto d, std::size_t i) HWY_ATTR {
    const BitsTag<decltype(d)> du;
    const auto value = hn::LoadU(d, in + i);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, kHalf - 1)), odd);
    store_narrow(d, upper_of(d, value, rounded), bits_out + i);
  });
}

void split_values(const float* x, std::uint16_t* upper, std::uint16_t* lower, std::size_t n) {
  for_each_vector(n, {}, [=](auto d, std::size_t i) HWY_ATTR {
    const BitsTag<decltype(d)> du;
    const auto value = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(du, value);
    const auto rest = hn::And(bits, hn::Set(du, kLower));
    store_narrow(d, upper_of(d, value, hn::Add(bits, hn::Set(du, kHalf))), upper + i);
    store_narrow(d, hn::IfThenZeroElse(nan_of(d, value), rest), lower + i);
  });
}

void join_values(const std::uint16_t* upper, const std::uint16_t* lower, float* x, std::size_t n) {
  for_each_vector(n, {}, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const HalfTag<decltype(d)> d16;
    const auto high = hn::ShiftLeft<16>(hn::PromoteTo(di, hn::LoadU(d16, upper + i)));
    const auto low = hn::PromoteTo(di, hn::LoadU(d16, lower + i));
    const auto rest = hn::ShiftRight<16>(hn::ShiftLeft<16>(low));  // sign extended
    const auto magnitude = hn::And(high, hn::Set(di, kMagnitude));
    const auto beyond =
        hn::Or(hn::Lt(hn::Add(magnitude, rest), hn::Zero(di)),
               hn::And(hn::Eq(magnitude, hn::Set(di, kInfinity)), hn::Gt(rest, hn::Zero(di))));
    const auto bits = hn::Add(high, hn::IfThenZeroElse(beyond, rest));
    hn::StoreU(hn::BitCast(d, bits), d, x + i);
  });
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
  PRIDE_DISPATCH(kernels::widen)(in.data(), out.data(), in.size());
}

void to_bf16(std::span<const float> in, std::span<BFloat16> out) noexcept {
  PRIDE_DISPATCH(kernels::narrow)(in.data(), out.data(), in.size());
}

void split(std::span<const float> x, std::uint16_t* upper, std::uint16_t* lower) noexcept {
  PRIDE_DISPATCH(kernels::split_values)(x.data(), upper, lower, x.size());
}

void join(const std::uint16_t* upper, const std::uint16_t* lower, std::span<float> x) noexcept {
  PRIDE_DISPATCH(kernels::join_values)(upper, lower, x.data(), x.size());
}

}  // namespace pride
#endif  // HWY_ONCE
