// Frames of scaled signs: these exact bytes, blocks that do not depend on the cuts, and everything
// malformed is refused by name.
// SPDX-License-Identifier: Apache-2.0
// The bytes are the worked example of docs/wire_format.md.
#include "codecs/scaled_signs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

std::vector<Bucket> buckets_of(const std::vector<TensorSpec>& tensors, std::size_t coords,
                               int world) {
  return make_buckets(Layout(tensors), coords, world, kScaleBlock);
}

TEST(ScaledSigns, BlocksAreTensorsCutAtMultiplesOf4096WhateverTheBuckets) {
  const std::vector<TensorSpec> tensors = {{"a", {100}}, {"b", {9000}}, {"c", {64}}, {"d", {5000}}};
  using Range = std::pair<std::size_t, std::size_t>;
  // 100 takes 128 coordinates, 9000 takes 9024
  const std::vector<Range> expected = {{0, 100},     {128, 4096},   {4096, 8192},  {8192, 9128},
                                       {9152, 9216}, {9216, 12288}, {12288, 14216}};
  for (const std::size_t coords : {1, 4096, 10'000, 1 << 20}) {
    for (const int world : {1, 2, 3, 8}) {
      std::vector<Range> got;
      const auto buckets = buckets_of(tensors, coords, world);
      for (std::size_t b = buckets.size(); b-- > 0;) {
        for (const Shard& shard : buckets[b].shards) {
          for (const ScaleBlock& block : scale_blocks(shard)) {
            EXPECT_EQ(block.first_word, (block.begin - shard.begin) / 64);
            got.emplace_back(block.begin, block.end);
          }
        }
      }
      EXPECT_EQ(got, expected) << coords << " a bucket, N = " << world;
    }
  }
}

TEST(ScaledSigns, FrameHoldsOneBitACoordinateAndOneFloatABlock) {
  const Shard shard = buckets_of({{"w", {5 * 4096}}}, 1 << 20, 1)[0].shards[0];
  const ScaledSignFrame frame(shard);
  EXPECT_EQ(frame.scales_at, 72u);
  EXPECT_EQ(frame.n_scales, 5u);
  EXPECT_EQ(frame.signs_at, 72u + 24);  // padded to 8
  EXPECT_EQ(frame.bytes, 72u + 24 + 5 * 512);
}

TEST(ScaledSigns, FrameOfAnEmptyShardIsAHeader) {
  const Shard shard = buckets_of({{"w", {1}}}, 1, 3)[0].shards[0];
  ASSERT_EQ(shard.size(), 0u);
  EXPECT_EQ(ScaledSignFrame(shard).bytes, 64u);
  EXPECT_NO_THROW(check_scaled_signs({std::vector<std::byte>(64), shard, 0, "test"}));
}

// A tensor of 3 coordinates with a scale of 0.5 and signs + - +, one of 2 that is absent.
struct Example {
  Shard shard = buckets_of({{"a", {3}}, {"b", {2}}, {"c", {1}}}, 1 << 20, 1)[0].shards[0];
  ScaledSignFrame at{shard};
  std::vector<std::byte> frame = std::vector<std::byte>(at.bytes);

  Example() {
    clear_scaled_signs(frame, at);
    set_bit(words_at(std::span(frame), at.absent_at, 1), 1);
    scales_of(std::span(frame), at)[0] = 0.5f;
    scales_of(std::span(frame), at)[2] = 3.0f;
    words_at(std::span(frame), at.signs_at, 3)[0] = 0b101;
    words_at(std::span(frame), at.signs_at, 3)[2] = 0b1;
  }

  std::string error() const {
    try {
      check_scaled_signs({frame, shard, 7, "test"});
    } catch (const CommError& e) {
      return e.what();
    }
    return "";
  }
};

TEST(ScaledSigns, FrameHasTheseBytes) {
  const Example example;
  const std::vector<int> payload = {
      2, 0, 0,    0,    0, 0, 0, 0,  // absent bits: piece 1
      0, 0, 0,    0x3F, 0, 0, 0, 0,  // scales: 0.5, 0 (absent),
      0, 0, 0x40, 0x40, 0, 0, 0, 0,  // 3, padding
      5, 0, 0,    0,    0, 0, 0, 0,  // signs of piece 0: + - +
      0, 0, 0,    0,    0, 0, 0, 0,  // of piece 1
      1, 0, 0,    0,    0, 0, 0, 0,  // of piece 2: +
  };
  ASSERT_EQ(example.frame.size(), 64 + payload.size());
  for (std::size_t i = 0; i < payload.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(example.frame[64 + i]), payload[i]) << "byte " << i;
  }
  EXPECT_EQ(example.error(), "");
}

TEST(ScaledSigns, RefusesScalesThatAreNoSizes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {kInf, -kInf, std::nanf(""), -1.0f, -0.0f, -1e-45f}) {
    Example example;
    scales_of(std::span(example.frame), example.at)[2] = bad;
    EXPECT_NE(example.error().find("test: the frame from rank 7 has scale"), std::string::npos)
        << bad << ": '" << example.error() << "'";
    EXPECT_NE(example.error().find("block 2"), std::string::npos);
  }
  for (const float good : {0.0f, 1e-45f, std::numeric_limits<float>::max()}) {
    Example example;
    scales_of(std::span(example.frame), example.at)[0] = good;
    EXPECT_EQ(example.error(), "");
  }
}

TEST(ScaledSigns, RefusesBitsWhereNothingIs) {
  const auto error_with = [](std::size_t byte, int value) {
    Example example;
    example.frame[byte] = static_cast<std::byte>(value);
    return example.error();
  };
  EXPECT_NE(error_with(64, 0x0A).find("absent bits beyond its 3 pieces"), std::string::npos);
  EXPECT_NE(error_with(84, 1).find("a scale beyond its 3 blocks"), std::string::npos);
  EXPECT_NE(error_with(88, 0x0D).find("signs beyond the end of tensor 0"), std::string::npos);
  EXPECT_NE(error_with(111, 0x80).find("signs beyond the end of tensor 2"), std::string::npos);
}

TEST(ScaledSigns, RefusesAnySizeButItsOwn) {
  const Example example;
  for (std::size_t n = 0; n < 200; ++n) {
    if (n == example.frame.size()) continue;
    const std::vector<std::byte> other(n);
    EXPECT_THROW(check_scaled_signs({other, example.shard, 0, "test"}), CommError) << n << " bytes";
  }
}

}  // namespace
}  // namespace pride
