// Philox words for coordinates, compiled once for each target.
// SPDX-License-Identifier: Apache-2.0
#if defined(PRIDE_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRIDE_KERNELS_PHILOX_INL_H_
#undef PRIDE_KERNELS_PHILOX_INL_H_
#else
#define PRIDE_KERNELS_PHILOX_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/philox_key.h"
#include "kernels/simd-inl.h"
#include "pride/random_bits.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

// The random words of the 64 coordinates from `coord` on, a multiple of 64: word c % 4 of
// philox4x32({low half of c/4, high half of c/4, low half of step, rank ^ purpose}, seed).
#if PRIDE_SIMD
using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

struct Product {
  WordVec low, high;
};

HWY_INLINE Product multiply(WordVec a, WordVec b) {
  const WordTag d;
  const hn::Repartition<std::uint64_t, WordTag> d64;
  const auto even = hn::MulEven(a, b);
  const auto shifted = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a)));
  const auto odd = hn::MulEven(shifted, b);  // b is the same in all lanes
  const auto high_of_even = hn::BitCast(d, hn::ShiftRight<32>(even));
  return {hn::Mul(a, b), hn::OddEven(hn::BitCast(d, odd), high_of_even)};
}

HWY_INLINE void aligned_philox_words(const PhiloxKey& key, std::uint32_t purpose,
                                     std::uint64_t coord, std::uint32_t* out) {
  const WordTag d;
  const auto ma = hn::Set(d, 0xD2511F53u), mb = hn::Set(d, 0xCD9E8D57u);
  for (std::size_t block = 0; block < 16; block += hn::Lanes(d)) {
    const std::uint64_t first = coord / 4 + block;  // 16 blocks of a word share the high half
    auto c0 = hn::Iota(d, static_cast<std::uint32_t>(first));
    auto c1 = hn::Set(d, static_cast<std::uint32_t>(first >> 32));
    auto c2 = hn::Set(d, static_cast<std::uint32_t>(key.step));
    auto c3 = hn::Set(d, static_cast<std::uint32_t>(key.rank) ^ purpose);
    auto k0 = hn::Set(d, static_cast<std::uint32_t>(key.seed));
    auto k1 = hn::Set(d, static_cast<std::uint32_t>(key.seed >> 32));
    for (int round = 0; round < 10; ++round) {
      const Product a = multiply(c0, ma), b = multiply(c2, mb);
      c0 = hn::Xor(hn::Xor(b.high, c1), k0);
      c2 = hn::Xor(hn::Xor(a.high, c3), k1);
      c1 = b.low;
      c3 = a.low;
      k0 = hn::Add(k0, hn::Set(d, 0x9E3779B9u));
      k1 = hn::Add(k1, hn::Set(d, 0xBB67AE85u));
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, out + 4 * block);
  }
}
#else
inline void aligned_philox_words(const PhiloxKey& key, std::uint32_t purpose, std::uint64_t coord,
                                 std::uint32_t* out) {
  for (std::uint64_t block = coord / 4; block < coord / 4 + 16; ++block, out += 4) {
    const auto words = philox4x32(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
         static_cast<std::uint32_t>(key.step), static_cast<std::uint32_t>(key.rank) ^ purpose},
        {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
    std::copy(words.begin(), words.end(), out);
  }
}
#endif

// The same for any first coordinate.
inline void philox_words(const PhiloxKey& key, std::uint32_t purpose, std::uint64_t coord,
                         std::uint32_t* out) {
  const std::size_t ahead = coord % 64;
  if (ahead == 0) return aligned_philox_words(key, purpose, coord, out);
  alignas(64) std::uint32_t two[128];
  aligned_philox_words(key, purpose, coord - ahead, two);
  aligned_philox_words(key, purpose, coord - ahead + 64, two + 64);
  std::copy_n(two + ahead, 64, out);
}

// (word >> 8) * 2^-24: a float in [0, 1).
template <class D>
HWY_INLINE hn::Vec<D> unit_float(D d, const std::uint32_t* words) {
  const auto upper = hn::ShiftRight<8>(hn::LoadU(hn::RebindToUnsigned<D>(), words));
  return hn::Mul(hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<D>(), upper)),
                 hn::Set(d, 0x1p-24f));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
