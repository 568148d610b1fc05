// Packed numbers against the scalar oracle, bit for bit, for every base that counts can have up to
// 1025 and a few larger ones.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/radix_ref.h, which divides where the kernels multiply.
#include "kernels/radix.h"

#include <bit>

#include "kernels/isa_test.h"
#include "reference/kernels_ref.h"
#include "reference/radix_ref.h"
#include "support/grid.h"

namespace pride::kernels::radix_test {
namespace {

using grid::Guarded;
using Numbers = std::vector<std::uint32_t>;

std::vector<std::uint32_t> bases() {
  std::vector<std::uint32_t> all;
  for (std::uint32_t base = 2; base <= 1025; ++base) all.push_back(base);
  for (const std::uint32_t base : {1626u, 4097u, 32768u, 65535u, 65536u}) all.push_back(base);
  return all;
}

Numbers random_numbers(Radix radix, std::size_t n_groups) {
  PhiloxStream random(radix.base, 0, n_groups);
  Numbers numbers(64 * radix.n_digits * n_groups);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // first coordinates of a word: all the smallest, all the largest, one off these
    const std::size_t c = i % 64, word = i / 64;
    if (c == 0) continue;
    numbers[i] = c == 1   ? radix.base - 1
                 : c == 2 ? (word % radix.n_digits == radix.n_digits - 1 ? 1 : 0)
                 : c == 3 ? (word % radix.n_digits == 0 ? 1 : 0)
                          : random.next_below(radix.base);
  }
  return numbers;
}

std::vector<std::uint64_t> planes_of(const Numbers& numbers, std::size_t n_planes,
                                     std::size_t stride) {
  std::vector<std::uint64_t> planes(n_planes * stride);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (std::size_t p = 0; p < n_planes; ++p) {
      planes[p * stride + i / 64] |= static_cast<std::uint64_t>((numbers[i] >> p) & 1) << (i % 64);
    }
  }
  return planes;
}

std::size_t planes_for(Radix radix) {
  return static_cast<std::size_t>(std::bit_width(radix.base - 1));
}

TEST(Radix, TakesAsManyDigitsAs32BitsHold) {
  EXPECT_EQ(radix_of(3).n_digits, 20u);
  EXPECT_EQ(radix_of(5).n_digits, 13u);
  EXPECT_EQ(radix_of(9).n_digits, 10u);
  EXPECT_EQ(radix_of(33).n_digits, 6u);
  for (const std::uint32_t base : bases()) {
    const Radix radix = radix_of(base);
    EXPECT_LT(reference::modulus(radix), std::uint64_t{1} << 32) << base;
    EXPECT_GE(reference::modulus(radix) * base, std::uint64_t{1} << 32) << base;
  }
}

// The end points of the argument in radix.h, by arithmetic alone: ceil(V * 2^32 / M) has V as its
// first digits, for the smallest and largest V and around every power of the base.
TEST(Radix, FractionsHoldTheirDigits) {
  for (const std::uint32_t base : bases()) {
    const std::uint64_t m = reference::modulus(radix_of(base));
    for (std::uint64_t power = 1; power <= m; power *= base) {
      for (const std::uint64_t v : {power - 1, power % m, m - power}) {
        const std::uint64_t f = ((v << 32) + m - 1) / m;
        ASSERT_LT(f, std::uint64_t{1} << 32) << "base " << base << ", V = " << v;
        ASSERT_EQ((f * m) >> 32, v) << "base " << base;
      }
    }
  }
}

class PackedDigits : public OnEveryIsa {};

TEST_P(PackedDigits, PacksAsTheOracleForEveryBase) {
  for (const std::uint32_t base : bases()) {
    const Radix radix = radix_of(base);
    for (const std::size_t n_groups : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
      const Numbers numbers = random_numbers(radix, n_groups);
      const std::size_t stride = numbers.size() / 64 + n_groups;
      const auto planes = planes_of(numbers, planes_for(radix), stride);
      Guarded<std::uint32_t> packed(64 * n_groups, 1);
      pack_digits(planes, planes_for(radix), stride, radix, packed.span());
      ASSERT_EQ(packed.values(), reference::pack_digits(numbers, radix)) << "base " << base;
      ASSERT_TRUE(packed.intact());
      ASSERT_EQ(reference::unpack_digits(packed.values(), radix), numbers) << "base " << base;
    }
  }
}

TEST_P(PackedDigits, UnpacksEveryRangeOfWordsForEveryBase) {
  for (const std::uint32_t base : bases()) {
    const Radix radix = radix_of(base);
    const Numbers numbers = random_numbers(radix, 3);
    const Numbers packed = reference::pack_digits(numbers, radix);
    const std::size_t n_words = numbers.size() / 64, n_planes = planes_for(radix) + base % 2;
    for (std::size_t first = 0; first < n_words; first += 1 + first / 2) {
      const std::size_t n = n_words - first - (first % 3 < n_words - first ? first % 3 : 0);
      Guarded<std::uint64_t> planes(n_planes * (n + 1), 1);
      // the words between the planes are unchanged
      auto want = planes.values();
      const auto range =
          planes_of({numbers.begin() + static_cast<std::ptrdiff_t>(64 * first),
                     numbers.begin() + static_cast<std::ptrdiff_t>(64 * (first + n))},
                    n_planes, n + 1);
      for (std::size_t p = 0; p < n_planes; ++p) {
        for (std::size_t k = 0; k < n; ++k) want[p * (n + 1) + k] = range[p * (n + 1) + k];
      }
      unpack_digits(packed, radix, first, n, n_planes, n + 1, planes.span());
      ASSERT_TRUE(grid::same_words(planes.values(), want)) << "base " << base << " word " << first;
      ASSERT_TRUE(planes.intact());
    }
  }
}

TEST_P(PackedDigits, PacksFewerDigitsThanThereIsRoomFor) {
  for (const Radix radix : {Radix{3, 1}, Radix{5, 4}, Radix{33, 5}, Radix{65536, 1}}) {
    const Numbers numbers = random_numbers(radix, 2);
    const std::size_t stride = numbers.size() / 64;
    const auto planes = planes_of(numbers, planes_for(radix), stride);
    Numbers packed(128);
    pack_digits(planes, planes_for(radix), stride, radix, packed);
    EXPECT_EQ(packed, reference::pack_digits(numbers, radix)) << "base " << radix.base;
  }
}

// Against the counts' own kernel, which has an oracle: the same bits from any word on, tails too.
TEST_P(PackedDigits, AppliesAsBitPlanesDo) {
  const Step step{.decay = {0.9997f, 1.0f}, .lr = 3e-4f};
  for (const std::uint32_t base : {3u, 5u, 6u, 9u, 10u, 33u, 65u, 129u, 1001u, 65536u}) {
    const Radix radix = radix_of(base);
    const int world = static_cast<int>(base) - 1;
    const Numbers numbers = random_numbers(radix, 3);
    const std::size_t n_words = numbers.size() / 64, n_planes = planes_for(radix);
    const auto planes = planes_of(numbers, n_planes, n_words);
    const Numbers packed = reference::pack_digits(numbers, radix);
    for (std::size_t first = 0; first < n_words; first += 1 + first / 3) {
      for (const std::size_t cut : {0, 1, 17, 63, 64, 200}) {
        const std::size_t n = 64 * (n_words - first);
        if (cut > n) continue;
        const auto x = grid::awkward_floats(n - cut, first);
        Guarded<float> got(x, 1);
        apply_packed_counts(packed, radix, first, world - 1, world, step, got.span());
        const auto want = reference::apply_counts({planes.begin() + first, planes.end()}, n_planes,
                                                  n_words, world - 1, world, step, x);
        ASSERT_TRUE(grid::same_floats(got.values(), want)) << "base " << base << " word " << first;
        ASSERT_TRUE(got.intact());
      }
    }
  }
}

TEST_P(PackedDigits, FindsTheLargestNumberOfARange) {
  for (const std::uint32_t base : {3u, 5u, 33u, 1001u}) {
    const Radix radix = radix_of(base);
    Numbers numbers(64 * radix.n_digits * 2, 1);
    const std::size_t n_words = numbers.size() / 64;
    for (std::size_t word = 0; word < n_words; ++word) {
      numbers[64 * word + (7 * word) % 64] = base - 1;
      const Numbers packed = reference::pack_digits(numbers, radix);
      EXPECT_EQ(max_digit(packed, radix, 0, n_words), base - 1);
      EXPECT_EQ(max_digit(packed, radix, word, 1), base - 1);
      EXPECT_EQ(max_digit(packed, radix, word, 0), 0u);
      EXPECT_EQ(max_digit(packed, radix, 0, word), word == 0 ? 0u : 1u);
      EXPECT_EQ(max_digit(packed, radix, word + 1, n_words - word - 1),
                word + 1 == n_words ? 0u : 1u);
      numbers[64 * word + (7 * word) % 64] = 1;
    }
  }
}

TEST_P(PackedDigits, AnyBitsAreNumbersBelowTheBase) {
  for (const std::uint32_t base : {3u, 5u, 33u, 129u}) {
    const Radix radix = radix_of(base);
    Numbers packed(64 * 5);
    for (std::size_t i = 0; i < packed.size(); ++i) {
      packed[i] = i == 0 ? 0xFFFFFFFFu : static_cast<std::uint32_t>(mix64(base, i));
    }
    EXPECT_LT(max_digit(packed, radix, 0, 5 * radix.n_digits), base);
  }
}

PRIDE_ON_EVERY_ISA(PackedDigits);

}  // namespace
}  // namespace pride::kernels::radix_test
