// first_non_finite, sum_squares and sum_abs: one value from a span. Read 4 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/scaled_signs.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

std::size_t find_non_finite(std::span<const float> x) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto largest = hn::Set(d, hwy::HighestValue<float>());
  for (; i + 64 <= x.size(); i += 64) {
    prefetch_ahead(x.data() + i, 64 * sizeof(float));
    auto finite = hn::Le(hn::Abs(hn::LoadU(d, x.data() + i)), largest);
    for (std::size_t j = hn::Lanes(d); j < 64; j += hn::Lanes(d)) {
      finite = hn::And(finite, hn::Le(hn::Abs(hn::LoadU(d, x.data() + i + j)), largest));
    }
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) break;
  }
#endif
  const std::size_t found = scalar::first_non_finite(x.data() + i, x.size() - i);
  return found == kAllFinite ? kAllFinite : i + found;
}

// Sum of x^2, or of |x|, over sixteen partial sums.
template <bool kSquares>
double sum_of(std::span<const float> x) {
  std::array<double, 16> partial{};
  std::size_t i = 0;
#if PRIDE_SIMD && HWY_HAVE_FLOAT64
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const std::size_t lanes = hn::Lanes(dd);
  // one pass for each vector of partial sums keeps every sum in a register; the blocks stay in L1
  for (; i + 1024 <= x.size(); i += 1024) {
    for (std::size_t p = 0; p < 16; p += 2 * lanes) {
      auto low = hn::LoadU(dd, partial.data() + p),
           high = hn::LoadU(dd, partial.data() + p + lanes);
      for (std::size_t j = p; j < 1024; j += 16) {
        const auto a = hn::PromoteTo(dd, hn::LoadU(df, x.data() + i + j));
        const auto b = hn::PromoteTo(dd, hn::LoadU(df, x.data() + i + j + lanes));
        low = hn::Add(low, kSquares ? hn::Mul(a, a) : hn::Abs(a));
        high = hn::Add(high, kSquares ? hn::Mul(b, b) : hn::Abs(b));
      }
      hn::StoreU(low, dd, partial.data() + p);
      hn::StoreU(high, dd, partial.data() + p + lanes);
    }
  }
#endif
  for (; i < x.size(); ++i) {
    const double value = static_cast<double>(x[i]);
    partial[i % 16] += kSquares ? value * value : std::abs(value);
  }
  for (std::size_t width = 1; width < 16; width *= 2) {
    for (std::size_t p = 0; p < 16; p += 2 * width) partial[p] += partial[p + width];
  }
  return partial[0];
}

double squares(std::span<const float> x) { return sum_of<true>(x); }
double magnitudes(std::span<const float> x) { return sum_of<false>(x); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(find_non_finite);
HWY_EXPORT(squares);
HWY_EXPORT(magnitudes);

std::size_t first_non_finite(std::span<const float> x) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(find_non_finite)(x);
}

double sum_squares(std::span<const float> x) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(squares)(x);
}

double sum_abs(std::span<const float> x) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(magnitudes)(x);
}

void CheckFinite::run() const noexcept {
  g.for_blocks([&](std::size_t, std::span<const float> part) {
    if (first_non_finite(part) != kAllFinite) fault.note();
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
