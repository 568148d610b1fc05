// Frames of signs and votes: sizes by formula, parts in order, and refusals of every malformed
// frame, with the fault in the error.
// SPDX-License-Identifier: Apache-2.0
// Oracle: docs/wire_format.md.
#include "codecs/signs.h"

#include <gtest/gtest.h>

#include "codecs/made_frames.h"

namespace pride::signs_test {
namespace {

using testing::error_of;
using testing::expect_refused;
using testing::offset_of;
using testing::result_error_of;
using testing::zeros;

Shard shard_of(const std::vector<TensorSpec>& tensors, int world, std::size_t rank) {
  return make_buckets(Layout(tensors), std::size_t{1} << 30, world)[0].shards[rank];
}

TEST(SignFrame, HoldsOneBitACoordinateAndOneUnusedBitAPiece) {
  const Shard shard = shard_of({{"w", {640}}}, 2, 1);
  const ByteBuffer frame = zeros(sign_frames().bytes(shard));
  EXPECT_EQ(frame.size(), 64u + 8 + 320 / 8);
  const SignView view(frame.span().data(), shard);
  EXPECT_EQ(offset_of(view.unused, frame), 64u);
  EXPECT_EQ(offset_of(view.signs, frame), 72u);
  EXPECT_EQ(view.bytes, frame.size());
}

TEST(SignFrame, TakesASecondUnusedWordFromPiece65On) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 65; ++i) tensors.push_back({"t" + std::to_string(i), {1}});
  const Shard shard = shard_of(tensors, 1, 0);
  EXPECT_EQ(SignView<std::byte>(nullptr, shard).unused.size(), 2u);
  EXPECT_EQ(sign_frames().bytes(shard), 64u + 16 + 65 * 8);
}

TEST(SignFrame, OfAnEmptyShardIsAHeader) {
  const Shard shard = testing::empty_shard();
  for (const FrameKind& kind : {sign_frames(), vote_frames(false), vote_frames(true)}) {
    EXPECT_EQ(kind.bytes(shard), 64u) << kind.name;
    EXPECT_EQ(error_of(kind, zeros(64), shard), "") << kind.name;
  }
}

TEST(SignFrame, OfAWholeBucketHasItsOwnCodec) {
  EXPECT_EQ(sign_frames().codec, Codec::kSign);
  EXPECT_EQ(sign_frames(Codec::kAllSigns).codec, Codec::kAllSigns);
  EXPECT_EQ(sign_frames(Codec::kAllSigns).name, "all signs");
}

TEST(VoteFrame, TernaryDoublesTheBits) {
  const Shard shard = shard_of({{"w", {6400}}}, 1, 0);
  EXPECT_EQ(vote_frames(false).bytes(shard), 64u + 8 + 800);
  EXPECT_EQ(vote_frames(true).bytes(shard), 64u + 8 + 1600);
  const ByteBuffer frame = zeros(64 + 8 + 1600);
  const VoteView ternary(frame.span().data(), shard, true);
  EXPECT_EQ(offset_of(ternary.unused, frame), 64u);
  EXPECT_EQ(offset_of(ternary.positive, frame), 72u);
  EXPECT_EQ(offset_of(ternary.nonzero, frame), 72u + 800);
  EXPECT_TRUE(VoteView(frame.span().data(), shard, false).nonzero.empty());
}

// 66 coordinates, and 3 that are unused.
struct Example {
  Shard shard = shard_of({{"a", {66}}, {"b", {3}}}, 1, 0);

  std::string error_with(const FrameKind& kind, std::size_t byte, unsigned value) const {
    ByteBuffer frame = zeros(kind.bytes(shard));
    frame.span()[kHeaderBytes] = std::byte{2};
    frame.span()[byte] = static_cast<std::byte>(value);
    return error_of(kind, frame, shard);
  }
};

TEST(SignFrame, RefusesBitsWhereNothingIs) {
  const Example example;
  for (const FrameKind& kind :
       {sign_frames(), sign_frames(Codec::kAllSigns), vote_frames(false), vote_frames(true)}) {
    EXPECT_EQ(example.error_with(kind, 80, 0x03), "") << kind.name;
    expect_refused(example.error_with(kind, 64, 0x06), "has unused bits beyond its 2 pieces");
    expect_refused(example.error_with(kind, 80, 0x04), "has signs beyond the end of tensor 0");
    expect_refused(example.error_with(kind, 87, 0x80), "has signs beyond the end of tensor 0");
    expect_refused(example.error_with(kind, 88, 0x08), "has signs beyond the end of tensor 1");
    expect_refused(example.error_with(kind, 88, 0x04),
                   "has signs of tensor 1, which it marks as unused");
  }
  EXPECT_EQ(example.error_with(vote_frames(true), 119, 0x80), "");  // padding of `nonzero`
}

// A result must include this rank's participation; other ranks may use other tensors.
TEST(VoteFrame, RefusesAResultThatForgetsThisRank) {
  const Example example;
  const FrameKind kind = vote_frames(false);
  ByteBuffer frame = zeros(kind.bytes(example.shard));
  frame.span()[kHeaderBytes] = std::byte{2};
  const std::vector<char> used = {0, 0}, unused = {0, 1};
  expect_refused(result_error_of(kind, frame, example.shard, used),
                 "marks tensor 1 as unused on all ranks; this rank uses it");
  EXPECT_EQ(result_error_of(kind, frame, example.shard, unused), "");
  EXPECT_EQ(result_error_of(kind, frame, example.shard, {}), "");  // no gradients in this process
  EXPECT_EQ(error_of(kind, frame, example.shard), "");
}

}  // namespace
}  // namespace pride::signs_test
