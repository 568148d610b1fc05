// first_non_finite, max_abs, sum, sum_abs and sum_squares: one value from a span. Read 4 bytes per
// coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scaled_signs.h"
#include "kernels/ternary.h"
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
  const FloatTag d;
  for (; i + 64 <= x.size(); i += 64) {
    prefetch_ahead(x.data() + i, 64 * sizeof(float));
    auto finite = is_finite(d, hn::LoadU(d, x.data() + i));
    for (std::size_t j = hn::Lanes(d); j < 64; j += hn::Lanes(d)) {
      finite = hn::And(finite, is_finite(d, hn::LoadU(d, x.data() + i + j)));
    }
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) break;
  }
  for (; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return kAllFinite;
}

float largest(std::span<const float> x) {
  const FloatTag d;
  auto most = hn::Zero(d);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= x.size(); i += hn::Lanes(d)) {
    const auto a = hn::Abs(hn::LoadU(d, x.data() + i));
    most = hn::IfThenElse(hn::Gt(a, most), a, most);
  }
  float out = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < x.size(); ++i) out = std::abs(x[i]) > out ? std::abs(x[i]) : out;
  return out;
}

enum class Term { kValue, kMagnitude, kSquare };

// Sum of the terms over sixteen partial sums.
template <Term kTerm>
double sum_of(std::span<const float> x) {
  std::array<double, 16> partial{};
  std::size_t i = 0;
#if PRIDE_SIMD && HWY_HAVE_FLOAT64
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const std::size_t lanes = hn::Lanes(dd);
  const auto term = [](auto a) HWY_ATTR {
    return kTerm == Term::kSquare ? hn::Mul(a, a) : kTerm == Term::kMagnitude ? hn::Abs(a) : a;
  };
  // one pass for each vector of partial sums keeps every sum in a register; the blocks stay in L1
  for (; i + 1024 <= x.size(); i += 1024) {
    for (std::size_t p = 0; p < 16; p += 2 * lanes) {
      auto low = hn::LoadU(dd, partial.data() + p),
           high = hn::LoadU(dd, partial.data() + p + lanes);
      for (std::size_t j = p; j < 1024; j += 16) {
        const auto a = hn::PromoteTo(dd, hn::LoadU(df, x.data() + i + j));
        const auto b = hn::PromoteTo(dd, hn::LoadU(df, x.data() + i + j + lanes));
        low = hn::Add(low, term(a));
        high = hn::Add(high, term(b));
      }
      hn::StoreU(low, dd, partial.data() + p);
      hn::StoreU(high, dd, partial.data() + p + lanes);
    }
  }
#endif
  for (; i < x.size(); ++i) {
    const double value = static_cast<double>(x[i]);
    partial[i % 16] += kTerm == Term::kSquare      ? value * value
                       : kTerm == Term::kMagnitude ? std::abs(value)
                                                   : value;
  }
  for (std::size_t width = 1; width < 16; width *= 2) {
    for (std::size_t p = 0; p < 16; p += 2 * width) partial[p] += partial[p + width];
  }
  return partial[0];
}

double values(std::span<const float> x) { return sum_of<Term::kValue>(x); }
double magnitudes(std::span<const float> x) { return sum_of<Term::kMagnitude>(x); }
double squares(std::span<const float> x) { return sum_of<Term::kSquare>(x); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(find_non_finite);
HWY_EXPORT(largest);
HWY_EXPORT(values);
HWY_EXPORT(magnitudes);
HWY_EXPORT(squares);

std::size_t first_non_finite(std::span<const float> x) noexcept {
  return PRIDE_DISPATCH(find_non_finite)(x);
}

float max_abs(std::span<const float> x) noexcept { return PRIDE_DISPATCH(largest)(x); }

double sum(std::span<const float> x) noexcept { return PRIDE_DISPATCH(values)(x); }

double sum_abs(std::span<const float> x) noexcept { return PRIDE_DISPATCH(magnitudes)(x); }

double sum_squares(std::span<const float> x) noexcept { return PRIDE_DISPATCH(squares)(x); }

void CheckFinite::run() const noexcept {
  g.for_blocks([&](std::size_t, std::span<const float> part) {
    if (first_non_finite(part) != kAllFinite) fault.note();
  });
}

void FindNonzero::run() const noexcept {
  if (max_abs(x) > 0) found.note();
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
