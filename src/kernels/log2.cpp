// log2_of and exp2_of, and sum_log2, the logarithm of a product of magnitudes. Reads 4 bytes per
// coordinate.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/log2.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/log2_scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/log2.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// As in sum_squares, one pass per vector of partial products keeps that vector in a register.
void multiply_by(std::span<const float> x, Product& product) {
#if PRIDE_SIMD && HWY_HAVE_FLOAT64
  if (x.size() == kLogBlock) {
    const hn::CappedTag<double, 8> dd;
    const hn::Rebind<float, decltype(dd)> df;
    const hn::RebindToUnsigned<decltype(dd)> du;
    const auto offset = hn::Set(dd, kZeroOffset);
    const auto fraction = hn::Set(du, kFraction), one = hn::Set(du, kOne);
    for (std::size_t p = 0; p < 16; p += hn::Lanes(dd)) {
      auto mantissas = hn::LoadU(dd, product.mantissas.data() + p);
      auto exponents = hn::LoadU(du, product.exponents.data() + p);
      for (std::size_t i = p; i < kLogBlock; i += 16) {
        const auto size = hn::Abs(hn::PromoteTo(dd, hn::LoadU(df, x.data() + i)));
        const auto bits = hn::BitCast(du, hn::Add(size, offset));
        exponents = hn::Add(exponents, hn::ShiftRight<52>(bits));
        mantissas = hn::Mul(mantissas, hn::BitCast(dd, hn::Or(hn::And(bits, fraction), one)));
      }
      hn::StoreU(mantissas, dd, product.mantissas.data() + p);
      hn::StoreU(exponents, du, product.exponents.data() + p);
    }
    return;
  }
#endif
  scalar::multiply_by(x, product);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(multiply_by);

// ln m = 2 artanh((m - 1)/(m + 1)) with m in [sqrt(1/2), sqrt(2)]: |t| < 0.172, whose 23rd power
// is below a double's precision.
double log2_of(double x) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & kFraction) | kOne);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1) / (m + 1), square = t * t;
  double series = 0;
  for (int power = 21; power >= 1; power -= 2) series = series * square + 1.0 / power;
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  return static_cast<double>(exponent) + kTwoOverLn2 * t * series;
}

// 2^y = 2^q exp(f ln 2) with |f| <= 1/2: Taylor's series, whose 15th term is below a double's
// precision.
double exp2_of(double y) noexcept {
  const double q = std::floor(y + 0.5), z = (y - q) * 0.6931471805599453;
  double series = 1;
  for (int k = 14; k >= 1; --k) series = 1 + z * series / k;
  return std::ldexp(series, static_cast<int>(q));  // exact
}

namespace {

void normalise(Product& product) {
  for (std::size_t p = 0; p < 16; ++p) {
    const auto bits = std::bit_cast<std::uint64_t>(product.mantissas[p]);
    product.exponents[p] += (bits >> 52) - 1023;
    product.mantissas[p] = std::bit_cast<double>((bits & kFraction) | kOne);
  }
}

}  // namespace

double sum_log2(std::span<const float> x) noexcept {
  use_selected_isa();
  Product product;
  product.mantissas.fill(1);
  product.exponents.fill(0);
  for (std::size_t at = 0; at < x.size(); at += kLogBlock) {
    HWY_DYNAMIC_DISPATCH(multiply_by)(x.subspan(at, std::min(kLogBlock, x.size() - at)), product);
    normalise(product);
  }
  double mantissa = 1;
  std::uint64_t exponent = 0;
  for (std::size_t p = 0; p < 16; ++p) {
    mantissa *= product.mantissas[p];
    exponent += product.exponents[p];
  }
  const auto unbiased =
      static_cast<std::int64_t>(exponent) - 1023 * static_cast<std::int64_t>(x.size());
  return static_cast<double>(unbiased) + log2_of(mantissa);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
