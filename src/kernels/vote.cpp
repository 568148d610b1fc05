// vote and vote_ternary: majority of packed signs.
// Read 1/8 byte per row, write 1/8 (1/4) byte per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "pride/random_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vote.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/bit_slices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Hash words k, k + 1, ... as one vector.
template <class D>
HWY_INLINE hn::Vec<D> hash_words(D d, HashWords ties, std::size_t k) {
  HWY_ALIGN std::uint64_t words[8];
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    words[i] = mix64(ties.key, ties.first_word + k + i);
  }
  return hn::Load(d, words);
}

struct MajorityVote {
  Rows rows;
  HashWords ties;
  std::span<std::uint64_t> positive;

  template <std::size_t kPlanes, class D>
  HWY_INLINE void at(D d, std::size_t k) const {
    hn::Vec<D> planes[kPlanes];
    count_rows<kPlanes>(d, rows, k, planes);
    const auto half = compare<kPlanes>(d, planes, rows.size() / 2);
    auto result = half.above;
    if (rows.size() % 2 == 0) {
      result = hn::Or(result, hn::And(half.equal, hash_words(d, ties, k)));
    }
    hn::StoreU(result, d, positive.data() + k);
  }

  template <std::size_t kPlanes>
  void run() const {
    const WordsTag d;
    std::size_t k = 0;
    for (; k + hn::Lanes(d) <= positive.size(); k += hn::Lanes(d)) at<kPlanes>(d, k);
    for (; k < positive.size(); ++k) at<kPlanes>(OneWordTag(), k);
  }
};

struct TernaryVote {
  Rows rows;
  std::span<std::uint64_t> positive, nonzero;

  template <std::size_t kPlanes, class D>
  HWY_INLINE void at(D d, std::size_t k) const {
    hn::Vec<D> planes[kPlanes];
    count_rows<kPlanes>(d, rows, k, planes);
    const auto half = compare<kPlanes>(d, planes, rows.size() / 2);
    const auto ones = hn::Not(hn::Zero(d));
    hn::StoreU(half.above, d, positive.data() + k);
    hn::StoreU(rows.size() % 2 == 0 ? hn::Not(half.equal) : ones, d, nonzero.data() + k);
  }

  template <std::size_t kPlanes>
  void run() const {
    const WordsTag d;
    std::size_t k = 0;
    for (; k + hn::Lanes(d) <= positive.size(); k += hn::Lanes(d)) at<kPlanes>(d, k);
    for (; k < positive.size(); ++k) at<kPlanes>(OneWordTag(), k);
  }
};

void majority(Rows rows, HashWords ties, std::span<std::uint64_t> positive) {
  with_planes(rows.size(), MajorityVote{rows, ties, positive});
}

void ternary_majority(Rows rows, std::span<std::uint64_t> positive,
                      std::span<std::uint64_t> nonzero) {
  with_planes(rows.size(), TernaryVote{rows, positive, nonzero});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(majority);
HWY_EXPORT(ternary_majority);

void vote(std::span<const std::uint64_t* const> rows, HashWords ties,
          std::span<std::uint64_t> positive) noexcept {
  if (rows.empty()) return std::fill(positive.begin(), positive.end(), 0), void();
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(majority)(rows, ties, positive);
}

void vote_ternary(std::span<const std::uint64_t* const> rows, std::span<std::uint64_t> positive,
                  std::span<std::uint64_t> nonzero) noexcept {
  use_selected_isa();
  HWY_DYNAMIC_DISPATCH(ternary_majority)(rows, positive, nonzero);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
