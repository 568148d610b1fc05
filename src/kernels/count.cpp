// count: bit planes of the number of +1 per coordinate.
// Reads 1/8 byte per row, writes 1/8 byte per plane and coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "kernels/isa.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/count.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/bit_slices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void count_planes(Rows rows, std::size_t n_words, std::size_t n_planes,
                  std::span<std::uint64_t> planes) {
  for_each_count(rows, n_words, [=](auto d, const auto& counts, std::size_t k) {
    for (std::size_t p = 0; p < n_planes; ++p) {
      const bool counted = p < std::size(counts);
      hn::StoreU(counted ? counts[p] : hn::Zero(d), d, planes.data() + p * n_words + k);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(count_planes);

void count(std::span<const std::uint64_t* const> rows, std::size_t n_words, std::size_t n_planes,
           std::span<std::uint64_t> planes) noexcept {
  PRIDE_DISPATCH(count_planes)(rows, n_words, n_planes, planes);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
