// sum_rows and mean_rows: sums in row order. Read 4 bytes per row, write 4 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sum_rows.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// All loads of a block come before its stores, so that `out` may be one of the rows.
template <bool kMean>
void sum(std::span<const float* const> rows, float divisor, std::span<float> out) {
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const auto vdivisor = hn::Set(d, divisor);
  const std::size_t lanes = hn::Lanes(d);
  for (; i + 4 * lanes <= out.size(); i += 4 * lanes) {
    prefetch_next_page(rows[0] + i, 4 * lanes * sizeof(float));
    auto s0 = hn::LoadU(d, rows[0] + i), s1 = hn::LoadU(d, rows[0] + i + lanes);
    auto s2 = hn::LoadU(d, rows[0] + i + 2 * lanes), s3 = hn::LoadU(d, rows[0] + i + 3 * lanes);
    for (const float* row : rows.subspan(1)) {
      prefetch_next_page(row + i, 4 * lanes * sizeof(float));
      s0 = hn::Add(s0, hn::LoadU(d, row + i));
      s1 = hn::Add(s1, hn::LoadU(d, row + i + lanes));
      s2 = hn::Add(s2, hn::LoadU(d, row + i + 2 * lanes));
      s3 = hn::Add(s3, hn::LoadU(d, row + i + 3 * lanes));
    }
    float* to = out.data() + i;
    hn::StoreU(kMean ? hn::Div(s0, vdivisor) : s0, d, to);
    hn::StoreU(kMean ? hn::Div(s1, vdivisor) : s1, d, to + lanes);
    hn::StoreU(kMean ? hn::Div(s2, vdivisor) : s2, d, to + 2 * lanes);
    hn::StoreU(kMean ? hn::Div(s3, vdivisor) : s3, d, to + 3 * lanes);
  }
#endif
  for (; i < out.size(); ++i) {
    const float total = scalar::sum_at(rows, i);
    out[i] = kMean ? total / divisor : total;
  }
}

void sum_of(std::span<const float* const> rows, std::span<float> out) { sum<false>(rows, 1, out); }

void mean_of(std::span<const float* const> rows, float divisor, std::span<float> out) {
  sum<true>(rows, divisor, out);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(sum_of);
HWY_EXPORT(mean_of);

void mean_rows(std::span<const float* const> rows, int divisor, std::span<float> out) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(mean_of)(rows, static_cast<float>(divisor), out);
}

void sum_rows(std::span<const float* const> rows, std::span<float> out) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(sum_of)(rows, out);
}

void Sum::run() const noexcept {
  constexpr std::size_t kBlock = ConstFloats::kBlock;
  alignas(64) std::array<float, kBlock> room;
  const std::size_t most = a.halved() ? kBlock : out.size();
  for (std::size_t begin = 0; begin < out.size(); begin += most) {
    const Floats some = out.subspan(begin, std::min(most, out.size() - begin));
    some.for_blocks([&](std::size_t at, std::span<float> part) {
      const ConstFloats row = a.subspan(begin + at, part.size());
      const float* const rows[] = {row.read(room).data(), b.data() + begin + at};
      sum_rows(rows, part);
    });
  }
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
