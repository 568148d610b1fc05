// top_k and select: the entries of largest magnitude, exactly. A radix select on the bits of |v|,
// whose order as integers is that of the magnitudes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// Bits of up to 64 coordinates: magnitude above, or equal to, the threshold.
struct SelectWord {
  std::uint64_t above = 0, equal = 0;
};

HWY_INLINE SelectWord compare_word(const float* v, std::size_t n, std::uint32_t magnitude) {
  SelectWord out;
  for_each_vector(n, {}, [&](auto d, std::size_t i) HWY_ATTR {
    // magnitudes have no sign bit, so that signed comparison orders them
    const hn::RebindToSigned<decltype(d)> di;
    const auto limit = hn::Set(di, static_cast<std::int32_t>(magnitude));
    const auto bits = hn::BitCast(di, hn::Abs(hn::LoadU(d, v + i)));
    out.above |= mask_bits(d, hn::RebindMask(d, hn::Gt(bits, limit))) << i;
    out.equal |= mask_bits(d, hn::RebindMask(d, hn::Eq(bits, limit))) << i;
  });
  return out;
}

std::size_t select_words(std::span<const float> v, TopK& which, std::span<std::uint64_t> mask) {
  std::size_t n_selected = 0;
  for (std::size_t k = 0; k < mask.size(); ++k) {
    const std::size_t n = std::min<std::size_t>(64, v.size() - 64 * k);
    const SelectWord found = compare_word(v.data() + 64 * k, n, which.magnitude);
    std::uint64_t word = found.above;
    for (std::uint64_t equal = found.equal; equal != 0 && which.n_equal > 0; --which.n_equal) {
      word |= equal & (~equal + 1);  // the lowest
      equal &= equal - 1;
    }
    mask[k] = word;
    n_selected += static_cast<std::size_t>(std::popcount(word));
  }
  return n_selected;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {
namespace {

// Two counters per bin, so that runs of one value do not serialise on one memory cell.
template <int kBits>
class Histogram {
 public:
  void add(std::span<const float> v, int shift, std::uint32_t prefix) noexcept {
    constexpr std::uint32_t kMask = (1u << kBits) - 1;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(v[i]) & 0x7FFFFFFFu;
      if (shift + kBits < 31 && (bits >> (shift + kBits)) != prefix) continue;
      ++counts_[i % 2][(bits >> shift) & kMask];
    }
  }

  // The bin that holds the k-th largest; k is then its rank within the bin, from 1.
  std::uint32_t find(std::size_t& k) const noexcept {
    for (std::uint32_t bin = 1u << kBits; bin-- > 0;) {
      const std::size_t n = counts_[0][bin] + counts_[1][bin];
      if (n >= k) return bin;
      k -= n;
    }
    return 0;
  }

 private:
  std::array<std::array<std::size_t, std::size_t{1} << kBits>, 2> counts_{};
};

}  // namespace

HWY_EXPORT(select_words);

TopK top_k(std::span<const float> v, std::size_t k) noexcept {
  if (k == 0) return {0x7FFFFFFFu, 0};  // no magnitude is larger
  if (k >= v.size()) return {0, 0};     // all but zeros
  Histogram<11> high;
  high.add(v, 20, 0);
  const std::uint32_t first = high.find(k);
  Histogram<10> middle;
  middle.add(v, 10, first);
  const std::uint32_t second = (first << 10) | middle.find(k);
  Histogram<10> low;
  low.add(v, 0, second);
  const std::uint32_t magnitude = (second << 10) | low.find(k);
  return {magnitude, magnitude == 0 ? 0 : k};
}

std::size_t select(std::span<const float> v, TopK& which, std::span<std::uint64_t> mask) noexcept {
  return PRIDE_DISPATCH(select_words)(v, which, mask);
}

void clear_selected(std::span<const std::uint64_t> mask, std::span<float> v) noexcept {
  for (std::size_t k = 0; k < mask.size(); ++k) {
    for (std::uint64_t left = mask[k]; left != 0; left &= left - 1) {
      v[64 * k + static_cast<std::size_t>(std::countr_zero(left))] = 0;
    }
  }
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
