// Buckets, shards and pieces cover each coordinate once, whatever the sizes.
// SPDX-License-Identifier: Apache-2.0
#include "base/bucket.h"

#include <gtest/gtest.h>

#include "pride/error.h"

namespace pride {
namespace {

TEST(MakeBuckets, CoversEveryCoordinateOnce) {
  const Layout layout({{"a", {100}}, {"b", {1}}, {"zero", {0}}, {"c", {1000}}, {"d", {64}}});
  for (const std::size_t target : {1, 64, 100, 640, 100000}) {
    for (const int world : {1, 2, 3, 7, 64}) {
      std::vector<int> seen(layout.flat_size(), 0);
      for (const Bucket& bucket : make_buckets(layout, target, world)) {
        ASSERT_EQ(bucket.shards.size(), static_cast<std::size_t>(world));
        std::size_t at = bucket.begin;
        for (const Shard& shard : bucket.shards) {
          ASSERT_EQ(shard.begin, at);
          ASSERT_EQ(shard.begin % 64, 0u);
          at = shard.end;
          std::size_t words = 0;
          for (const Piece& piece : shard.pieces) {
            ASSERT_EQ(piece.begin, shard.begin + 64 * words);
            ASSERT_EQ(piece.first_word, words);
            words += piece.n_words();
            const TensorSlot& slot = layout.tensors()[piece.tensor];
            ASSERT_GE(piece.begin, slot.offset);
            ASSERT_LE(piece.end, slot.offset + slot.n);
            for (std::size_t i = piece.begin; i < piece.end; ++i) ++seen[i];
          }
          ASSERT_EQ(words, shard.n_words());
        }
        ASSERT_EQ(at, bucket.end);
      }
      for (const TensorSlot& slot : layout.tensors()) {
        for (std::size_t i = 0; i < slot.n; ++i) ASSERT_EQ(seen[slot.offset + i], 1) << i;
      }
    }
  }
}

TEST(MakeBuckets, BeginsWithTheEndOfTheLayout) {
  const Layout layout({{"first", {640}}, {"last", {640}}});
  const auto buckets = make_buckets(layout, 320, 2);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].end, layout.flat_size());
  EXPECT_EQ(buckets[3].begin, 0u);
  for (std::size_t b = 0; b < 4; ++b) EXPECT_EQ(buckets[b].index, static_cast<int>(b));
}

TEST(MakeBuckets, ShardsDifferByOneWordAtMost) {
  const auto buckets = make_buckets(Layout({{"w", {64 * 10}}}), 1 << 20, 3);
  ASSERT_EQ(buckets.size(), 1u);
  for (const Shard& shard : buckets[0].shards) {
    EXPECT_GE(shard.n_words(), 3u);
    EXPECT_LE(shard.n_words(), 4u);
  }
}

TEST(MakeBuckets, RefusesNonsense) {
  const Layout layout({{"w", {10}}});
  EXPECT_THROW(make_buckets(layout, 0, 1), InvalidArgument);
  EXPECT_THROW(make_buckets(layout, 64, 0), InvalidArgument);
  EXPECT_TRUE(make_buckets(Layout({}), 64, 2).empty());
}

}  // namespace
}  // namespace pride
