// Frames of counts: exact bytes in both forms, packed counts never larger than planes, and
// refusals of every malformed frame, with the fault in the error.
// SPDX-License-Identifier: Apache-2.0
// The bytes are the worked example of docs/wire_format.md.
#include "codecs/counts.h"

#include <gtest/gtest.h>

#include <bit>

#include "codecs/made_frames.h"
#include "kernels/radix.h"

namespace pride::counts_test {
namespace {

using testing::expect_refused;
using testing::offset_of;
using testing::shard_of;
using testing::zeros;

TEST(Counts, TakeTheseBits) {
  const auto bits = [](int world) { return count_bits(world, CountForm::kPacked); };
  EXPECT_EQ(bits(1), 1);
  EXPECT_EQ(bits(2), 1.6);
  EXPECT_EQ(bits(3), 2);  // N + 1 is a power of two: planes waste nothing
  EXPECT_EQ(bits(4), 32.0 / 13);
  EXPECT_EQ(bits(7), 3);
  EXPECT_EQ(bits(8), 3.2);
  EXPECT_EQ(bits(32), 32.0 / 6);
  EXPECT_EQ(bits(100), 7);  // 32 bits hold four numbers below 101: planes are shorter
  EXPECT_EQ(bits(kMaxWorld), 16);
  for (int world = 1; world <= 2000; ++world) {
    const double planes = count_bits(world, CountForm::kPlanes);
    EXPECT_EQ(planes, std::bit_width(static_cast<unsigned>(world)));
    EXPECT_LE(bits(world), planes);
    EXPECT_EQ(count_frames(world, CountForm::kPlanes).codec, Codec::kCount);
    EXPECT_EQ(count_frames(world, CountForm::kPacked).codec,
              bits(world) < planes ? Codec::kPackedCount : Codec::kCount);
  }
}

TEST(CountFrame, HasBitWidthOfNPlanes) {
  const Shard shard = shard_of({{"w", {6400}}});
  for (const auto& [world, planes] :
       {std::pair{1, 1}, {2, 2}, {3, 2}, {4, 3}, {7, 3}, {8, 4}, {32, 6}}) {
    const auto n = static_cast<std::size_t>(planes);
    EXPECT_EQ(CountShape(100, world, CountForm::kPlanes).n_planes, n) << "N = " << world;
    EXPECT_EQ(count_frames(world, CountForm::kPlanes).bytes(shard), 64u + 8 + n * 800);
  }
}

TEST(CountFrame, PacksWholeGroupsAndLeavesTheRestAsPlanes) {
  const Shard shard = shard_of({{"w", {6400}}});
  const ByteBuffer frame = zeros(count_frames(4, CountForm::kPacked).bytes(shard));
  EXPECT_EQ(frame.size(), 72u + 7 * 256 + 3 * 9 * 8);
  const CountView view(frame.span().data(), shard, 4, CountForm::kPacked);
  EXPECT_EQ(view.n_groups, 7u);  // of 13 words; 9 of the 100 words are left
  EXPECT_EQ(view.packed_words, 91u);
  EXPECT_EQ(view.plane_words, 9u);
  EXPECT_EQ(offset_of(view.users, frame), 64u);
  EXPECT_EQ(offset_of(view.packed, frame), 72u);
  EXPECT_EQ(offset_of(view.planes, frame), 72u + 7 * 256);
  EXPECT_EQ(view.bytes, frame.size());
}

TEST(CountFrame, PackedIsNeverLarger) {
  for (const int world : {1, 2, 3, 4, 5, 8, 16, 32, 64, 100, 1024}) {
    for (std::int64_t n = 1; n < 20'000; n += 641) {
      const Shard shard = shard_of({{"w", {n}}});
      EXPECT_LE(count_frames(world, CountForm::kPacked).bytes(shard),
                count_frames(world, CountForm::kPlanes).bytes(shard))
          << "N = " << world << ", " << n << " coordinates";
    }
  }
}

TEST(CountFrame, OfAnEmptyShardIsAHeader) {
  const Shard shard = testing::empty_shard();
  for (const CountForm form : {CountForm::kPlanes, CountForm::kPacked}) {
    const FrameKind kind = count_frames(3, form);
    EXPECT_EQ(kind.bytes(shard), 64u);
    EXPECT_EQ(testing::error_of(kind, zeros(64), shard), "");
  }
}

TEST(CountFrame, CountsTheUsersOfEachPiece) {
  const auto users_bytes = [](const Shard& shard) {
    const ByteBuffer frame = zeros(count_frames(4, CountForm::kPlanes).bytes(shard));
    const CountView view(frame.span().data(), shard, 4, CountForm::kPlanes);
    EXPECT_EQ(offset_of(view.packed, frame), offset_of(view.planes, frame));
    return offset_of(view.planes, frame) - offset_of(view.users, frame);
  };
  EXPECT_EQ(users_bytes(shard_of({{"rows", {5, 64}}})), 8u);  // one uint16, padded
  EXPECT_EQ(users_bytes(shard_of({{"a", {1}}, {"b", {1}}, {"c", {1}}, {"d", {1}}, {"e", {1}}})),
            16u);  // five uint16, padded
}

// N = 4: "a" of 14 words, used by all ranks; "b" of 3 words, used by three. 17 words: a group of 13
// and 4 words of planes.
struct Example {
  static constexpr int kWorld = 4;
  FrameKind kind = count_frames(kWorld, CountForm::kPacked);
  Shard shard = shard_of({{"a", {14 * 64}}, {"b", {3, 64}}});
  ByteBuffer frame = zeros(kind.bytes(shard));
  CountView<std::byte> view{frame.span().data(), shard, kWorld, CountForm::kPacked};

  Example() {
    view.users[0] = 4;
    view.users[1] = 3;
    // coordinate 0 of the group's words: counts 4 3 2 1 0 4 3 2 1 0 4 3 2
    view.packed[0] = 0xF01A3909u;
    // coordinate 1: 0 everywhere but a 1 in the last word
    view.packed[1] = 4;
    plane(0)[0] = 0b01;  // word 13: count 4 at coordinate 1, 1 at 0
    plane(2)[0] = 0b10;
    plane(0)[1] = 0b11;  // word 14, the first of "b": 3 at coordinate 0, 1 at 1
    plane(1)[1] = 0b01;
  }

  std::span<std::uint64_t> plane(std::size_t p) {
    return view.planes.subspan(p * view.plane_words, view.plane_words);
  }
  std::string error() const { return testing::error_of(kind, frame, shard); }
};

TEST(PackedCounts, FrameHasTheseBytes) {
  const Example example;
  testing::Bytes payload = {
      4,    0,    3,    0,    0, 0, 0, 0,  // users: 4 ranks of "a", 3 of "b"
      0x09, 0x39, 0x1A, 0xF0, 4, 0, 0, 0,  // coordinates 0 and 1 of words 0 to 12
  };
  payload.resize(8 + 256, 0);  // coordinates 2 to 63
  for (const unsigned low_byte : {1, 3, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0}) {
    payload.push_back(low_byte);  // words 13 to 16: three planes
    payload.resize(payload.size() + 7, 0);
  }
  EXPECT_EQ(example.frame.size(), 64 + payload.size());
  EXPECT_EQ(testing::payload_of(example.frame), payload);
  EXPECT_EQ(example.error(), "");
}

// What the kernel unpacks from the example's words: counts of coordinate 0, and of 1, of each.
TEST(PackedCounts, ExamplesWordsHoldItsCounts) {
  const Example example;
  constexpr std::size_t kWords = 13, kPlanes = 3;
  std::vector<std::uint64_t> planes(kPlanes * kWords);
  kernels::unpack_digits(example.view.packed, {.base = 5, .n_digits = kWords}, 0, kWords, kPlanes,
                         kWords, planes);
  const auto counts_of = [&](std::size_t coordinate) {
    std::vector<unsigned> counts(kWords);
    for (std::size_t at = 0; at < planes.size(); ++at) {
      counts[at % kWords] += (planes[at] >> coordinate & 1u) << (at / kWords);
    }
    return counts;
  };
  EXPECT_EQ(counts_of(0), (std::vector<unsigned>{4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4, 3, 2}));
  EXPECT_EQ(counts_of(1), (std::vector<unsigned>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(counts_of(2), std::vector<unsigned>(kWords));
}

TEST(PackedCounts, UsersFollowThePieces) {
  const Example example;
  const std::vector<Piece>& pieces = example.shard.pieces;
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].first_word, 0u);
  EXPECT_EQ(pieces[0].n_words(), 14u);
  EXPECT_EQ(pieces[1].first_word, 14u);
  EXPECT_EQ(pieces[1].n_words(), 3u);
  ASSERT_EQ(example.view.users.size(), 2u);
  EXPECT_EQ(example.view.users[0], 4);
  EXPECT_EQ(example.view.users[1], 3);
}

template <typename Change>
std::string error_after(const Change& change) {
  Example example;
  change(example);
  return example.error();
}

// Piece 2 is the padding behind the two.
std::string error_with_users(std::size_t piece, std::uint16_t n) {
  return error_after([=](Example& e) { e.view.users.data()[piece] = n; });
}

TEST(PackedCounts, RefusesMoreRanksThanThereAre) {
  expect_refused(error_with_users(0, 5), "counts 5 of 4 ranks as users of tensor 0");
  expect_refused(error_with_users(2, 1), "has ranks that use tensors beyond its 2 pieces");
}

TEST(PackedCounts, RefusesCountsOfMoreRanksThanUseTheTensor) {
  // planes: 5 ranks at a coordinate of "a", 4 at one of "b", any count where no rank uses it
  expect_refused(error_after([](Example& e) { e.plane(0)[0] = 0b11; }), "more than the 4 ranks");
  expect_refused(error_after([](Example& e) { e.plane(2)[1] = 1 << 5; }), "more than the 3 ranks");
  expect_refused(error_with_users(1, 0), "more than the 0 ranks that use tensor 1");
  // packed: the same counts are fine with 4 users, and one too many with 3
  expect_refused(error_with_users(0, 3), "counts more than the 3 ranks that use tensor 0");
}

// In either form, participation counts must be consistent with this rank's own unused tensors.
TEST(PackedCounts, RefusesAResultThatForgetsThisRank) {
  const Shard shard = shard_of({{"a", {14 * 64}}, {"b", {3, 64}}});
  const std::vector<char> both = {0, 0}, first = {0, 1};
  for (const CountForm form : {CountForm::kPlanes, CountForm::kPacked}) {
    const FrameKind kind = count_frames(4, form);
    ByteBuffer frame = zeros(kind.bytes(shard));
    const CountView view(frame.span().data(), shard, 4, form);
    const auto error_with = [&](std::uint16_t a, std::uint16_t b, std::span<const char> unused) {
      view.users[0] = a;
      view.users[1] = b;
      return testing::result_error_of(kind, frame, shard, unused);
    };
    EXPECT_EQ(error_with(1, 4, both), "");
    EXPECT_EQ(error_with(4, 0, first), "");
    EXPECT_EQ(error_with(4, 3, first), "");
    EXPECT_EQ(error_with(0, 4, {}), "");  // no gradients in this process
    expect_refused(error_with(0, 4, both),
                   "counts 0 of 4 ranks as users of tensor 0, which this rank");
    expect_refused(error_with(1, 4, first),
                   "counts 4 of 4 ranks as users of tensor 1, which this rank does not use");
    expect_refused(error_with(1, 5, first), "counts 5 of 4 ranks as users of tensor 1");
  }
}

}  // namespace
}  // namespace pride::counts_test
