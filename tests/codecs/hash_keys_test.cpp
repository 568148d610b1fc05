// The hash words of zeros and ties: exact values, and the pairs that must have opposite bits.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/hash_keys.h"

#include <gtest/gtest.h>

namespace pride::hash_keys_test {
namespace {

// The words are part of the wire format: these values must never change.
TEST(HashKeys, AreThese) {
  EXPECT_EQ(tie_key(0, 0), 0xC33F78A684259989u);
  EXPECT_EQ(tie_key(42, 7), 0xF52C1B55CD030905u);
  EXPECT_EQ(zero_key(42, 7), 0xA50BF4B608040DA5u);
  EXPECT_NE(zero_key(0, 0), zero_key(0, 1));
  EXPECT_NE(tie_key(0, 0), tie_key(0, 1));
  EXPECT_EQ(zero_words(42, 15, 3, 128).at(0), 0x21F5FDC25157D5E3u);
  EXPECT_EQ(tie_words(42, 14, 128).at(0), 0x71A461E78E49AA47u);
  // the example of the document
  EXPECT_EQ(zero_words(42, 6, 0, 0).at(0), 0xDA1B21C04E3B655Au);
  EXPECT_EQ(zero_words(42, 6, 1, 0).at(0), 0x25E4DE3FB1C49AA5u);
  EXPECT_EQ(zero_words(42, 7, 0, 0).at(0), 0x25E4DE3FB1C49AA5u);
  EXPECT_EQ(tie_words(42, 6, 0).at(0), 0x38A25C8CF4B69825u);
  EXPECT_EQ(tie_words(42, 7, 0).at(0), 0xC75DA3730B4967DAu);
}

TEST(HashKeys, OppositeBitsInThePairsOfExchangesAndOfRanks) {
  for (std::int64_t t = 0; t < 6; ++t) {
    for (std::uint64_t k = 0; k < 3; ++k) {
      const std::uint64_t word = zero_words(42, t, 0, 0).at(k), tie = tie_words(42, t, 0).at(k);
      for (int rank = 1; rank < 4; ++rank) {
        EXPECT_EQ(zero_words(42, t, rank, 64 * k).at(0), rank % 2 == 0 ? word : ~word) << t;
      }
      const bool second = t % 2 != 0;
      const std::uint64_t next = zero_words(42, t + 1, 0, 0).at(k);
      EXPECT_EQ(next == word, false) << t;
      EXPECT_EQ(next == ~word, !second) << t;
      EXPECT_EQ(tie_words(42, t + 1, 0).at(k) == ~tie, !second) << t;
    }
  }
}

// A part of a model begins anywhere: bit i of its words is that of coordinate first + i.
TEST(HashKeys, AreOfCoordinatesWhereverWordsBegin) {
  for (const std::uint64_t first : {0u, 1u, 63u, 64u, 200u}) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      const std::uint64_t c = first + i;
      EXPECT_EQ(tie_words(42, 3, first).at(i / 64) >> (i % 64) & 1,
                tie_words(42, 3, 0).at(c / 64) >> (c % 64) & 1);
      EXPECT_EQ(zero_words(42, 3, 1, first).at(i / 64) >> (i % 64) & 1,
                zero_words(42, 3, 1, 0).at(c / 64) >> (c % 64) & 1);
    }
  }
}

}  // namespace
}  // namespace pride::hash_keys_test
