// Frames of the signs of the coordinates whose turn it is in a step.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/turn_signs.h"
#include "support/texts.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

namespace pride::turn_signs_test {
namespace {

constexpr int kTurns[] = {1, 2, 4, 8, 16, 32, 64};

TEST(Turns, GiveEachCoordinateOneInARound) {
  for (const int n : kTurns) {
    const Turns turns(n);
    for (const std::int64_t cycle : {0, 5}) {
      for (std::uint64_t word = 0; word < 9; ++word) {
        std::uint64_t all = 0;
        for (std::int64_t step = cycle * n; step < (cycle + 1) * n; ++step) {
          const std::uint64_t mask = turns.mask(word, step);
          EXPECT_EQ(std::popcount(mask), 64 / n);
          EXPECT_EQ(all & mask, 0U);
          all |= mask;
        }
        EXPECT_EQ(all, ~std::uint64_t{0}) << n;
      }
    }
  }
}

TEST(Turns, DoNotGiveAllWordsTheSameBits) {
  const Turns turns(16);
  std::uint64_t masks = 0;
  for (std::uint64_t word = 0; word < 64; ++word) masks |= turns.mask(word, 3);
  EXPECT_EQ(masks, ~std::uint64_t{0});
}

// 11 words of 4 bits are 44 bits, in one word; of 16 bits 176, in three. Two tensors, of 6 and 5
// words; the second begins elsewhere in the whole model.
TEST(Turns, PackTheBitsOfAStepAndNoOthers) {
  constexpr std::uint64_t kFirst = 7, kSecond = 1000;
  const Shard shard{64 * kFirst,
                    64 * (kFirst + 11),
                    {{.tensor = 0, .begin = 64 * kFirst, .end = 64 * (kFirst + 6)},
                     {.tensor = 1,
                      .begin = 64 * (kFirst + 6),
                      .end = 64 * (kFirst + 11) - 9,
                      .first_word = 6,
                      .to_whole = 64 * (kSecond - kFirst - 6)}}};
  std::vector<std::uint64_t> words;
  for (std::uint64_t i = 0; i < 11; ++i) words.push_back(mix64(3, i));
  for (const int n : kTurns) {
    const Turns turns(n);
    ASSERT_EQ(turns.packed_words(words.size()), (words.size() * 64 / turns.n() + 63) / 64);
    for (std::int64_t step = 0; step < n; ++step) {
      std::vector<std::uint64_t> packed(turns.packed_words(words.size()), ~std::uint64_t{0});
      std::vector<std::uint64_t> back(words.size(), ~std::uint64_t{0});
      turns.pack(shard, words, step, packed);
      turns.unpack(shard, packed, step, back);
      for (std::size_t i = 0; i < words.size(); ++i) {
        const std::uint64_t number = i < 6 ? kFirst + i : kSecond + i - 6;
        ASSERT_EQ(back[i], words[i] & turns.mask(number, step)) << n << ", step " << step;
      }
      EXPECT_FALSE(bits_beyond(packed, words.size() * turns.bits()));
    }
  }
}

TEST(Turns, FramesWithBitsOfAnUnusedTensorOrAfterTheEndAreRefused) {
  const Turns turns(16);
  const Shard shard{0,
                    192,
                    {{.tensor = 4, .begin = 0, .end = 100, .first_word = 0},
                     {.tensor = 5, .begin = 128, .end = 192, .first_word = 2}}};
  const FrameKind kind = turn_frames(Codec::kTurnSigns, turns);
  ASSERT_EQ(kind.bytes(shard), kHeaderBytes + 8 + 8);
  std::vector<std::byte> bytes(kind.bytes(shard));
  const std::string where = "here";
  const auto refused = [&](std::uint64_t unused, std::uint64_t packed) {
    const TurnView view(bytes.data(), shard, turns);
    view.unused[0] = unused;
    view.packed[0] = packed;
    return texts::error_of<CommError>([&] { kind.check({{bytes}, shard, 1, where}); });
  };
  EXPECT_EQ(refused(0, 0xFFF), "");
  EXPECT_EQ(refused(2, 0x0FF), "");
  EXPECT_NE(refused(2, 0x100).find("signs of tensor 5"), std::string::npos);
  EXPECT_NE(refused(1, 0x080).find("signs of tensor 4"), std::string::npos);
  EXPECT_NE(refused(0, 0x1000).find("after its last coordinate"), std::string::npos);
}

}  // namespace
}  // namespace pride::turn_signs_test
