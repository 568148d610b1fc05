// count: bit planes of the number of +1 per coordinate.
// Reads 1/8 byte per row, writes 1/8 byte per plane and coordinate.
// SPDX-License-Identifier: Apache-2.0
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

struct Counter {
  Rows rows;
  std::size_t n_words, n_planes;
  std::uint64_t* out;

  template <std::size_t kPlanes, class D>
  HWY_INLINE void at(D d, std::size_t k) const {
    hn::Vec<D> planes[kPlanes];
    count_rows<kPlanes>(d, rows, k, planes);
    for (std::size_t p = 0; p < n_planes; ++p) {
      hn::StoreU(p < kPlanes ? planes[p] : hn::Zero(d), d, out + p * n_words + k);
    }
  }

  template <std::size_t kPlanes>
  void run() const {
    const WordsTag d;
    std::size_t k = 0;
    for (; k + hn::Lanes(d) <= n_words; k += hn::Lanes(d)) at<kPlanes>(d, k);
    for (; k < n_words; ++k) at<kPlanes>(OneWordTag(), k);
  }
};

void count_planes(Rows rows, std::size_t n_words, std::size_t n_planes,
                  std::span<std::uint64_t> planes) {
  with_planes(rows.size(), Counter{rows, n_words, n_planes, planes.data()});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(count_planes);

void count(std::span<const std::uint64_t* const> rows, std::size_t n_words, std::size_t n_planes,
           std::span<std::uint64_t> planes) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(count_planes)(rows, n_words, n_planes, planes);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
