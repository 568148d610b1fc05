// Counter-based random bits against Random123 (Philox), published SplitMix64 values, and bounds.
// SPDX-License-Identifier: Apache-2.0
#include "pride/random_bits.h"

#include <Random123/philox.h>
#include <gtest/gtest.h>

#include <set>

#undef philox4x32  // Random123's macro of that name hides the function under test

namespace pride::random_bits_test {
namespace {

TEST(Philox, EqualsRandom123) {
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const auto word = [i](std::uint64_t which) {
      return static_cast<std::uint32_t>(mix64(which, i) >> 16);
    };
    const std::array<std::uint32_t, 4> counter{word(1), word(2), word(3), word(4)};
    const std::array<std::uint32_t, 2> key{word(5), word(6)};
    const r123::Philox4x32 philox;
    const auto want =
        philox({{counter[0], counter[1], counter[2], counter[3]}}, {{key[0], key[1]}});
    const auto got = philox4x32(counter, key);
    for (std::size_t j = 0; j < 4; ++j) ASSERT_EQ(got[j], want[j]) << "case " << i << " word " << j;
  }
}

TEST(Mix64, EqualsSplitMix64) {
  // the first outputs of SplitMix64 seeded with 1234567, as published with the Rosetta Code task
  constexpr std::uint64_t kWant[] = {6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u};
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(mix64(1234567, i), kWant[i]) << "output " << i;
}

TEST(PhiloxStream, RepeatsFromItsKeyAndDiffersByEveryPart) {
  const auto first = [](std::uint64_t seed, std::uint32_t purpose, std::uint64_t a,
                        std::uint32_t b) {
    PhiloxStream stream(seed, purpose, a, b);
    for (int i = 0; i < 5; ++i) stream.next_u32();  // into the second block
    return stream.next_u64();
  };
  EXPECT_EQ(first(1, 2, 3, 4), first(1, 2, 3, 4));
  const std::set<std::uint64_t> values{first(1, 2, 3, 4), first(9, 2, 3, 4), first(1, 9, 3, 4),
                                       first(1, 2, 9, 4), first(1, 2, 3, 9)};
  EXPECT_EQ(values.size(), 5u);
}

TEST(PhiloxStream, DrawsBelowABoundEvenly) {
  // 60,000 draws of 6: each count has mean 10,000 and standard deviation 91; 5 of them allowed
  PhiloxStream stream(5, 1, 0);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) {
    const std::uint32_t value = stream.next_below(6);
    ASSERT_LT(value, 6u);
    ++counts[value];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 5 * 91);
  EXPECT_EQ(stream.next_below(1), 0u);
}

TEST(PhiloxStream, UnitsLieInTheHalfOpenInterval) {
  PhiloxStream stream(6, 1, 0);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const float unit = stream.next_unit();
    ASSERT_GE(unit, 0.0f);
    ASSERT_LT(unit, 1.0f);
    sum += unit;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 5 * 0.2887 / 316.2);  // five standard errors
}

}  // namespace
}  // namespace pride::random_bits_test
