// Payload offsets: sizes by formula, parts in order, no overlap.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/payload.h"

#include <gtest/gtest.h>

#include "codecs/hash_keys.h"

namespace pride {
namespace {

Shard shard_of(const std::vector<TensorSpec>& tensors, int world, std::size_t rank) {
  return make_buckets(Layout(tensors), std::size_t{1} << 30, world)[0].shards[rank];
}

TEST(SignFrame, HoldsOneBitACoordinateAndOneAbsentBitAPiece) {
  const Shard shard = shard_of({{"w", {640}}}, 2, 1);
  const SignFrame frame(shard);
  EXPECT_EQ(frame.absent_at, 64u);
  EXPECT_EQ(frame.signs_at, 72u);
  EXPECT_EQ(frame.bytes, 64u + 8 + 320 / 8);
}

TEST(SignFrame, TakesASecondAbsentWordFromPiece65On) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 65; ++i) tensors.push_back({"t" + std::to_string(i), {1}});
  EXPECT_EQ(SignFrame(shard_of(tensors, 1, 0)).absent_words, 2u);
}

TEST(SignFrame, OfAnEmptyShardIsAHeader) {
  const Shard shard = shard_of({{"w", {1}}}, 3, 0);
  ASSERT_EQ(shard.size(), 0u);
  EXPECT_EQ(SignFrame(shard).bytes, 64u);
  EXPECT_EQ(VoteFrame(shard, true).bytes, 64u);
  EXPECT_EQ(DenseFrame(shard).bytes, 64u);
}

TEST(VoteFrame, TernaryDoublesTheBits) {
  const Shard shard = shard_of({{"w", {6400}}}, 1, 0);
  EXPECT_EQ(VoteFrame(shard, false).bytes, 64u + 8 + 800);
  EXPECT_EQ(VoteFrame(shard, true).bytes, 64u + 8 + 1600);
}

TEST(DenseFrame, SendsFloatsApart) {
  const DenseFrame frame(shard_of({{"w", {640}}}, 2, 0));
  EXPECT_EQ(frame.bytes, 72u);
  EXPECT_EQ(frame.float_bytes, 320u * 4);
  EXPECT_EQ(DenseFrame(shard_of({{"w", {640}}}, 2, 0), 2).float_bytes, 320u * 2);
}

// The keys are part of the wire format: these values must never change.
TEST(HashKeys, AreThese) {
  EXPECT_EQ(tie_key(0, 0), 0xC33F78A684259989u);
  EXPECT_EQ(tie_key(42, 7), 0xF52C1B55CD030905u);
  EXPECT_EQ(zero_key(42, 7, 3), 0x14A47404DD3F2DDFu);
  EXPECT_NE(zero_key(0, 0, 0), zero_key(0, 0, 1));
  EXPECT_NE(tie_key(0, 0), tie_key(0, 1));
}

}  // namespace
}  // namespace pride
