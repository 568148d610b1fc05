// sum_rows and mean_rows: sums in row order. Read 4 bytes per row, write 4 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/value_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sum_rows.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// kVectors of coordinates. All loads come before the stores, so that `out` may be one of the rows.
template <bool kMean, std::size_t kVectors, class D>
HWY_INLINE void sum_at(D d, std::span<const float* const> rows, std::size_t i, float divisor,
                       float* out) {
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sums[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) sums[v] = hn::LoadU(d, rows[0] + i + v * lanes);
  for (const float* row : rows.subspan(1)) {
    prefetch_next_page(row + i, kVectors * lanes * sizeof(float));
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], hn::LoadU(d, row + i + v * lanes));
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    const auto result = kMean ? hn::Div(sums[v], hn::Set(d, divisor)) : sums[v];
    hn::StoreU(result, d, out + i + v * lanes);
  }
}

template <bool kMean>
void sum(std::span<const float* const> rows, float divisor, std::span<float> out) {
  const FloatTag d;
  constexpr std::size_t kVectors = 4, kBlock = kVectors * hn::MaxLanes(FloatTag());
  std::size_t i = 0;
  for (; i + kBlock <= out.size(); i += kBlock) {
    prefetch_next_page(rows[0] + i, kBlock * sizeof(float));
    sum_at<kMean, kVectors>(d, rows, i, divisor, out.data());
  }
  for (; i < out.size(); ++i) sum_at<kMean, 1>(OneFloatTag(), rows, i, divisor, out.data());
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
  PRIDE_DISPATCH(mean_of)(rows, static_cast<float>(divisor), out);
}

void sum_rows(std::span<const float* const> rows, std::span<float> out) noexcept {
  PRIDE_DISPATCH(sum_of)(rows, out);
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
