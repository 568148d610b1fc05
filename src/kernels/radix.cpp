// pack_digits, unpack_digits, apply_packed_counts and max_digit: numbers of a small base in 32-bit
// words.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/radix.h"

#include <algorithm>

#include "kernels/isa.h"
#include "kernels/radix_scalar.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/radix.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

#if PRIDE_SIMD
using DigitTag = hn::RebindToUnsigned<FloatTag>;
using PairTag = hn::Repartition<std::uint64_t, DigitTag>;  // products of 64 bits
using Digits = hn::Vec<DigitTag>;
using Pairs = hn::Vec<PairTag>;
constexpr std::size_t kLanes = hn::MaxLanes(DigitTag());
// Coordinates that are in registers at a time: four vectors, or a whole word if that is less.
constexpr std::size_t kHeld = std::min<std::size_t>(4, 64 / kLanes);

// The lower half of each pair times b.
HWY_INLINE Pairs times(Pairs a, std::uint32_t b) {
  const DigitTag d;
  return hn::MulEven(hn::BitCast(d, a), hn::Set(d, b));
}

// The lower halves of `even` and `odd`, lanes alternating.
HWY_INLINE Digits interleave(Pairs even, Pairs odd) {
  const DigitTag d;
  return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

// Constants for V -> ceil(V * 2^32 / M), M = base^n_digits.
struct Fraction {
  std::uint32_t m, inverse_low, inverse_high;  // inverse = ceil(2^64 / M)

  explicit Fraction(Radix radix) : m(scalar::power(radix.base, radix.n_digits)) {
    const std::uint64_t inverse = ~std::uint64_t{0} / m + 1;
    inverse_low = static_cast<std::uint32_t>(inverse);
    inverse_high = static_cast<std::uint32_t>(inverse >> 32);
  }

  // V * inverse / 2^32 exceeds V * 2^32 / M by less than 1, so its whole part q is the ceiling or
  // one less: one less exactly where q * M < V * 2^32.
  HWY_INLINE Pairs operator()(Pairs v) const {
    const Pairs q = hn::Add(hn::ShiftRight<32>(times(v, inverse_low)), times(v, inverse_high));
    const Pairs excess = hn::Sub(times(q, m), hn::ShiftLeft<32>(v));
    return hn::Add(q, hn::ShiftRight<63>(excess));  // adds the sign bit: 1 if negative
  }

  HWY_INLINE Digits operator()(Digits v) const {
    const Pairs pairs = hn::BitCast(PairTag(), v);
    return interleave((*this)(pairs), (*this)(hn::ShiftRight<32>(pairs)));
  }
};

// V of coordinates c, c + 1, ... as a sum over the bits: bit p of digit j adds 2^p * base^(n_digits
// - 1 - j), so no multiplication is needed.
HWY_INLINE void sum_bits(const std::uint64_t* planes, std::size_t n_planes, std::size_t stride,
                         Radix radix, std::size_t c, Digits (&v)[kHeld]) {
  const FloatTag d;
  const DigitTag du;
  for (Digits& one : v) one = hn::Zero(du);
  std::uint32_t weight = 1;
  for (std::size_t j = radix.n_digits; j-- > 0; weight *= radix.base) {
    for (std::size_t p = 0; p < n_planes; ++p) {
      const Digits term = hn::Set(du, weight << p);
      const std::uint64_t bits = planes[p * stride + j] >> c;
      for (std::size_t i = 0; i < kHeld; ++i) {
        const auto mask = hn::RebindMask(du, mask_of(d, bits >> (i * kLanes)));
        v[i] = hn::Add(v[i], hn::IfThenElseZero(mask, term));
      }
    }
  }
}

HWY_INLINE void pack_group(const std::uint64_t* planes, std::size_t n_planes, std::size_t stride,
                           Radix radix, const Fraction& fraction, std::uint32_t* out) {
  for (std::size_t c = 0; c < 64; c += kHeld * kLanes) {
    Digits v[kHeld];
    sum_bits(planes, n_planes, stride, radix, c, v);
    for (std::size_t i = 0; i < kHeld; ++i) {
      hn::StoreU(fraction(v[i]), DigitTag(), out + c + i * kLanes);
    }
  }
}

// Calls use(k, c, digits) for the numbers of coordinates c, c + 1, ... of word first_word + k.
template <class Use>
HWY_INLINE void for_each_digits(const std::uint32_t* packed, Radix radix, std::size_t first_word,
                                std::size_t n_words, const Use& use) {
  for (std::size_t k = 0; k < n_words;) {
    const std::size_t word = first_word + k, j = word % radix.n_digits;
    const std::size_t n = std::min(radix.n_digits - j, n_words - k);
    const std::uint32_t skip = scalar::power(radix.base, j);
    const std::uint32_t* group = packed + 64 * (word / radix.n_digits);
    for (std::size_t c = 0; c < 64; c += kHeld * kLanes) {
      Pairs even[kHeld], odd[kHeld];  // fractions in the lower halves
      for (std::size_t i = 0; i < kHeld; ++i) {
        const Pairs f = hn::BitCast(PairTag(), hn::LoadU(DigitTag(), group + c + i * kLanes));
        even[i] = times(f, skip);
        odd[i] = times(hn::ShiftRight<32>(f), skip);
      }
      for (std::size_t step = 0; step < n; ++step) {
        for (std::size_t i = 0; i < kHeld; ++i) {
          even[i] = times(even[i], radix.base);
          odd[i] = times(odd[i], radix.base);
          const Digits digits = hn::OddEven(hn::BitCast(DigitTag(), odd[i]),
                                            hn::BitCast(DigitTag(), hn::ShiftRight<32>(even[i])));
          use(k + step, c + i * kLanes, digits);
        }
      }
    }
    k += n;
  }
}
#endif

void pack(std::span<const std::uint64_t> planes, std::size_t n_planes, std::size_t stride,
          Radix radix, std::span<std::uint32_t> packed) {
  const std::uint64_t* group = planes.data();
#if PRIDE_SIMD
  const Fraction fraction(radix);
#endif
  for (std::size_t at = 0; at < packed.size(); at += 64, group += radix.n_digits) {
#if PRIDE_SIMD
    pack_group(group, n_planes, stride, radix, fraction, packed.data() + at);
#else
    scalar::pack_group(group, n_planes, stride, radix, packed.data() + at);
#endif
  }
}

void unpack(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
            std::size_t n_words, std::size_t n_planes, std::size_t stride,
            std::span<std::uint64_t> planes) {
#if PRIDE_SIMD
  const FloatTag d;
  const DigitTag du;
  for_each_digits(packed.data(), radix, first_word, n_words,
                  [&](std::size_t k, std::size_t c, Digits digits) HWY_ATTR {
                    for (std::size_t p = 0; p < n_planes; ++p) {
                      const auto mask = hn::TestBit(digits, hn::Set(du, std::uint32_t{1} << p));
                      const std::uint64_t bits = mask_bits(d, hn::RebindMask(d, mask)) << c;
                      std::uint64_t& word = planes[p * stride + k];
                      word = c == 0 ? bits : word | bits;
                    }
                  });
#else
  scalar::unpack_digits(packed.data(), radix, first_word, n_words, n_planes, stride, planes.data());
#endif
}

void apply_packed(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                  int present, int world, Step step, std::span<float> x) {
  const float fworld = static_cast<float>(world);
  std::size_t done = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto n = hn::Set(d, fworld);
  const auto vpresent = hn::Set(di, present);
  done = x.size() - x.size() % 64;
  with_decay(step.decay, [&](auto decay) HWY_ATTR {
    for_each_digits(packed.data(), radix, first_word, done / 64,
                    [&](std::size_t k, std::size_t c, Digits counts) HWY_ATTR {
                      float* at = x.data() + 64 * k + c;
                      const auto count = hn::BitCast(di, counts);
                      const auto sum = hn::Sub(hn::Add(count, count), vpresent);
                      const auto mean = hn::Div(hn::ConvertTo(d, sum), n);
                      hn::StoreU(stepped(d, at, decay, step.lr, mean), d, at);
                    });
  });
#endif
  scalar::apply_packed_counts(packed.data(), radix, 64 * first_word + done, present, fworld, step,
                              x.subspan(done));
}

std::uint32_t largest(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                      std::size_t n_words) {
#if PRIDE_SIMD
  const DigitTag d;
  Digits most = hn::Zero(d);
  for_each_digits(packed.data(), radix, first_word, n_words,
                  [&](std::size_t, std::size_t, Digits digits)
                      HWY_ATTR { most = hn::Max(most, digits); });
  return hn::GetLane(hn::MaxOfLanes(d, most));
#else
  return scalar::max_digit(packed.data(), radix, 64 * first_word, 64 * n_words);
#endif
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(pack);
HWY_EXPORT(unpack);
HWY_EXPORT(apply_packed);
HWY_EXPORT(largest);

void pack_digits(std::span<const std::uint64_t> planes, std::size_t n_planes,
                 std::size_t plane_stride, Radix radix, std::span<std::uint32_t> packed) noexcept {
  PRIDE_DISPATCH(pack)(planes, n_planes, plane_stride, radix, packed);
}

void unpack_digits(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                   std::size_t n_words, std::size_t n_planes, std::size_t plane_stride,
                   std::span<std::uint64_t> planes) noexcept {
  PRIDE_DISPATCH(unpack)
  (packed, radix, first_word, n_words, n_planes, plane_stride, planes);
}

void apply_packed_counts(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                         int present, int world, Step step, std::span<float> x) noexcept {
  PRIDE_DISPATCH(apply_packed)(packed, radix, first_word, present, world, step, x);
}

std::uint32_t max_digit(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                        std::size_t n_words) noexcept {
  return PRIDE_DISPATCH(largest)(packed, radix, first_word, n_words);
}

void ApplyPackedCounts::run() const noexcept {
  x.for_blocks([&](std::size_t at, std::span<float> part) {
    apply_packed_counts(packed, radix, first_word + at / 64, present, world, step, part);
  });
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
