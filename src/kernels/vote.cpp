// vote and vote_ternary: majority of packed signs.
// Read 1/8 byte per row, write 1/8 (1/4) byte per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vote.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/bit_slices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void majority(Rows rows, const SharedBits& ties, std::span<std::uint64_t> positive) {
  const std::size_t n_rows = rows.size();
  for_each_count(rows, positive.size(), [=, &ties](auto d, const auto& planes, std::size_t k) {
    const auto half = compare(d, planes, n_rows / 2);
    auto result = half.above;
    if (n_rows % 2 == 0) result = hn::Or(result, bits_of_ties(d, half.equal, ties, k));
    hn::StoreU(result, d, positive.data() + k);
  });
}

void ternary_majority(Rows rows, std::span<std::uint64_t> positive,
                      std::span<std::uint64_t> nonzero) {
  const bool can_tie = rows.size() % 2 == 0;
  const std::size_t n_rows = rows.size();
  for_each_count(rows, positive.size(), [=](auto d, const auto& planes, std::size_t k) {
    const auto half = compare(d, planes, n_rows / 2);
    const auto never = hn::Zero(d);
    hn::StoreU(half.above, d, positive.data() + k);
    hn::StoreU(hn::Not(can_tie ? half.equal : never), d, nonzero.data() + k);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(majority);
HWY_EXPORT(ternary_majority);

void vote(std::span<const std::uint64_t* const> rows, const SharedBits& ties,
          std::span<std::uint64_t> positive) noexcept {
  if (rows.empty()) return std::fill(positive.begin(), positive.end(), 0), void();
  PRIDE_DISPATCH(majority)(rows, ties, positive);
}

void vote_ternary(std::span<const std::uint64_t* const> rows, std::span<std::uint64_t> positive,
                  std::span<std::uint64_t> nonzero) noexcept {
  PRIDE_DISPATCH(ternary_majority)(rows, positive, nonzero);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
