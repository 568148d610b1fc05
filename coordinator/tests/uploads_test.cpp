// Uploads with chunks in any order, repeated and damaged.
// SPDX-License-Identifier: Apache-2.0
#include "coord/uploads.h"

#include <gtest/gtest.h>

#include "rig.h"

namespace pride::coord::test {
namespace {

std::uint64_t hash_of(const std::string& text) { return hash_bytes(bytes_of(text)); }

TEST(Upload, IsWholeOnceEachChunkCameInWhateverOrderAndHoweverOften) {
  const std::uint64_t total = 2 * kChunkBytes + 5;
  Upload upload(7, total);
  EXPECT_EQ(upload.missing(), (std::vector<std::uint32_t>{0, 1, 2}));
  upload.put(2, "abcde");
  upload.put(0, std::string(kChunkBytes, 'x'));
  upload.put(2, "ABCDE");  // the first stays
  EXPECT_EQ(upload.missing(), (std::vector<std::uint32_t>{1}));
  EXPECT_FALSE(upload.complete());
  upload.put(1, std::string(kChunkBytes, 'y'));
  ASSERT_TRUE(upload.complete());
  const auto bytes = upload.bytes();
  EXPECT_EQ(bytes.size(), total);
  EXPECT_EQ(bytes[0], std::byte{'x'});
  EXPECT_EQ(bytes[kChunkBytes], std::byte{'y'});
  EXPECT_EQ(bytes[total - 1], std::byte{'e'});
}

TEST(Upload, RefusesChunksOfOtherNumbersSizesAndHashes) {
  const std::uint64_t total = kChunkBytes + 3;
  EXPECT_EQ(refuse_chunk(total, 1, hash_of("abc"), "abc"), "");
  EXPECT_TRUE(has(refuse_chunk(total, 2, hash_of(""), ""), "chunk 2 of 2"));
  EXPECT_TRUE(has(refuse_chunk(total, 1, hash_of("ab"), "ab"), "has 2 bytes, not 3"));
  EXPECT_TRUE(has(refuse_chunk(total, 0, hash_of("ab"), "ab"), "not 1048576"));
  EXPECT_TRUE(has(refuse_chunk(total, 1, hash_of("abd"), "abc"), "hash"));
  EXPECT_NE(refuse_chunk(0, 0, hash_of(""), ""), "");
}

TEST(Upload, GoesOnAfterABreakWithWhatIsMissing) {
  Rig rig({}, run_of_signs(20'000'000));  // a ballot of three chunks
  Replica replica(rig.run());
  rig.join("ann");
  const std::string frames = ballot_of(rig.run(), {.number = 0}, Rig::all_positive);
  ASSERT_EQ(chunks_of(frames.size()), 3U);
  EXPECT_EQ(rig.missing(BALLOT, 0, 0, frames.size()).chunks_size(), 3);
  EXPECT_EQ(rig.put(BALLOT, 0, 0, frames, 1).refused(), "");
  rig.join("ann");  // the connection broke, and the client registered again
  const MissingReply missing = rig.missing(BALLOT, 0, 0, frames.size());
  ASSERT_EQ(missing.chunks_size(), 2);
  EXPECT_EQ(missing.chunks(0), 0U);
  EXPECT_EQ(missing.chunks(1), 2U);
  EXPECT_EQ(rig.vote({.number = 0}, replica.hash(), frames).status(), VoteReply::TAKEN);
  replica.apply(bytes_of(rig.get(RECORD, 0, 0)));  // three chunks down
  EXPECT_EQ(rig.chunk(RECORD, 0, 0, 0).data().size(), kChunkBytes);
  EXPECT_TRUE(has(rig.chunk(RECORD, 0, 0, 9).refused(), "chunk 9 of 3"));
}

}  // namespace
}  // namespace pride::coord::test
