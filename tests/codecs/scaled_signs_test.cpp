// Frames of scaled signs: exact bytes, blocks that do not depend on the cuts, and refusals of every
// malformed frame, with the fault in the error.
// SPDX-License-Identifier: Apache-2.0
// The bytes are the worked example of docs/wire_format.md.
#include "codecs/scaled_signs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codecs/made_frames.h"

namespace pride::scaled_signs_test {
namespace {

using testing::expect_refused;
using testing::offset_of;
using testing::zeros;

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
  const ByteBuffer frame = zeros(scaled_sign_frames().bytes(shard));
  EXPECT_EQ(frame.size(), 72u + 24 + 5 * 512);
  const ScaledSignView view(frame.span().data(), shard);
  EXPECT_EQ(offset_of(view.scales, frame), 72u);
  EXPECT_EQ(view.scales.size(), 5u);
  EXPECT_EQ(offset_of(view.signs, frame), 72u + 24);  // padded to 8
  const ScaleBlock last = scale_blocks(shard)[4];
  EXPECT_EQ(offset_of(view.signs_of(last), frame), 72u + 24 + 4 * 512);
  EXPECT_EQ(view.signs_of(last).size(), 64u);
}

TEST(ScaledSigns, FrameOfAnEmptyShardIsAHeader) {
  const Shard shard = buckets_of({{"w", {1}}}, 1, 3)[0].shards[0];
  ASSERT_EQ(shard.size(), 0u);
  EXPECT_EQ(scaled_sign_frames().bytes(shard), 64u);
  EXPECT_EQ(testing::error_of(scaled_sign_frames(), zeros(64), shard), "");
}

// A tensor of 3 coordinates with a scale of 0.5 and signs + - +, one of 2 that is unused.
struct Example {
  FrameKind kind = scaled_sign_frames();
  Shard shard = buckets_of({{"a", {3}}, {"b", {2}}, {"c", {1}}}, 1 << 20, 1)[0].shards[0];
  ByteBuffer frame = zeros(kind.bytes(shard));
  ScaledSignView<std::byte> view{frame.span().data(), shard};

  Example() {
    set_bit(view.unused, 1);
    view.scales[0] = 0.5f;
    view.scales[2] = 3.0f;
    view.signs[0] = 0b101;
    view.signs[2] = 0b1;
  }

  std::string error() const { return testing::error_of(kind, frame, shard); }
};

TEST(ScaledSigns, FrameHasTheseBytes) {
  const Example example;
  const testing::Bytes payload = {
      2, 0, 0,    0,    0, 0, 0, 0,  // unused bits: piece 1
      0, 0, 0,    0x3F, 0, 0, 0, 0,  // scales: 0.5, 0 (unused),
      0, 0, 0x40, 0x40, 0, 0, 0, 0,  // 3, padding
      5, 0, 0,    0,    0, 0, 0, 0,  // signs of piece 0: + - +
      0, 0, 0,    0,    0, 0, 0, 0,  // of piece 1
      1, 0, 0,    0,    0, 0, 0, 0,  // of piece 2: +
  };
  EXPECT_EQ(testing::payload_of(example.frame), payload);
  EXPECT_EQ(example.error(), "");
}

TEST(ScaledSigns, RefusesScalesThatAreNoSizes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {kInf, -kInf, std::nanf(""), -1.0f, -0.0f, -1e-45f}) {
    Example example;
    example.view.scales[2] = bad;
    expect_refused(example.error(), "has scale");
    EXPECT_NE(example.error().find("block 2"), std::string::npos) << bad;
  }
  for (const float good : {0.0f, 1e-45f, std::numeric_limits<float>::max()}) {
    Example example;
    example.view.scales[0] = good;
    EXPECT_EQ(example.error(), "");
  }
}

TEST(ScaledSigns, RefusesBitsWhereNothingIs) {
  const auto error_with = [](std::size_t byte, int value) {
    Example example;
    example.frame.span()[byte] = static_cast<std::byte>(value);
    return example.error();
  };
  expect_refused(error_with(64, 0x0A), "has unused bits beyond its 3 pieces");
  expect_refused(error_with(84, 1), "has a scale beyond its 3 blocks");
  expect_refused(error_with(88, 0x0D), "has signs beyond the end of tensor 0");
  expect_refused(error_with(111, 0x80), "has signs beyond the end of tensor 2");
}

// The unused bits of a result: tensors that no rank uses.
TEST(ScaledSigns, RefusesAResultThatForgetsThisRank) {
  const Example example;
  const std::vector<char> used_here = {0, 0, 0}, unused_here = {0, 1, 0};
  const auto error_with = [&](std::span<const char> unused) {
    return testing::result_error_of(example.kind, example.frame, example.shard, unused);
  };
  EXPECT_EQ(error_with(unused_here), "");
  expect_refused(error_with(used_here), "marks tensor 1 as unused on all ranks; this rank uses it");
}

}  // namespace
}  // namespace pride::scaled_signs_test
