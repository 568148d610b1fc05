// Frames of counts: these exact bytes in both forms, never more bytes packed than as planes, and
// everything malformed is refused by name.
// SPDX-License-Identifier: Apache-2.0
// The bytes are the worked example of docs/wire_format.md.
#include "codecs/counts.h"

#include <gtest/gtest.h>

#include <bit>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

Shard shard_of(const std::vector<TensorSpec>& tensors) {
  return make_buckets(Layout(tensors), std::size_t{1} << 30, 1)[0].shards[0];
}

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
    EXPECT_EQ(count_codec(world, CountForm::kPacked),
              bits(world) < planes ? Codec::kPackedCount : Codec::kCount);
  }
}

TEST(CountFrame, HasBitWidthOfNPlanes) {
  const Shard shard = shard_of({{"w", {6400}}});
  for (const auto& [world, planes] :
       {std::pair{1, 1}, {2, 2}, {3, 2}, {4, 3}, {7, 3}, {8, 4}, {32, 6}}) {
    const CountFrame frame(shard, world, CountForm::kPlanes);
    EXPECT_EQ(frame.n_planes, static_cast<std::size_t>(planes)) << "N = " << world;
    EXPECT_EQ(frame.bytes, 64u + 8 + static_cast<std::size_t>(planes) * 800);
  }
}

TEST(CountFrame, PacksWholeGroupsAndLeavesTheRestAsPlanes) {
  const CountFrame frame(shard_of({{"w", {6400}}}), 4, CountForm::kPacked);
  EXPECT_EQ(frame.n_groups, 7u);  // of 13 words; 9 of the 100 words are left
  EXPECT_EQ(frame.packed_words, 91u);
  EXPECT_EQ(frame.plane_words, 9u);
  EXPECT_EQ(frame.packed_at, 72u);
  EXPECT_EQ(frame.planes_at, 72u + 7 * 256);
  EXPECT_EQ(frame.bytes, 72u + 7 * 256 + 3 * 9 * 8);
}

TEST(CountFrame, PackedIsNeverLarger) {
  for (const int world : {1, 2, 3, 4, 5, 8, 16, 32, 64, 100, 1024}) {
    for (std::int64_t n = 1; n < 20'000; n += 641) {
      const Shard shard = shard_of({{"w", {n}}});
      EXPECT_LE(CountFrame(shard, world, CountForm::kPacked).bytes,
                CountFrame(shard, world, CountForm::kPlanes).bytes)
          << "N = " << world << ", " << n << " coordinates";
    }
  }
}

TEST(CountFrame, OfAnEmptyShardIsAHeader) {
  const Shard shard = make_buckets(Layout({{"w", {1}}}), 1, 3)[0].shards[0];
  ASSERT_EQ(shard.size(), 0u);
  for (const CountForm form : {CountForm::kPlanes, CountForm::kPacked}) {
    EXPECT_EQ(CountFrame(shard, 3, form).bytes, 64u);
    EXPECT_NO_THROW(check_counts({std::vector<std::byte>(64), shard, 0, "test"}, 3, form));
  }
}

TEST(CountFrame, CountsPresentRanksPerPiece) {
  const CountFrame one(shard_of({{"rows", {5, 64}}}), 4, CountForm::kPlanes);
  EXPECT_EQ(one.packed_at - one.present_at, 8u);  // one uint16, padded
  const Shard shard = shard_of({{"a", {1}}, {"b", {1}}, {"c", {1}}, {"d", {1}}, {"e", {1}}});
  const CountFrame five(shard, 4, CountForm::kPlanes);
  EXPECT_EQ(five.packed_at - five.present_at, 16u);  // five uint16, padded
}

// N = 4: "a" of 14 words, which all ranks have; "b" of 3 words, which three have. 17 words: a group
// of 13 and 4 words of planes.
struct Example {
  static constexpr int kWorld = 4;
  CountForm form = CountForm::kPacked;
  Shard shard = shard_of({{"a", {14 * 64}}, {"b", {3, 64}}});
  CountFrame at{shard, kWorld, form};
  std::vector<std::byte> frame = std::vector<std::byte>(at.bytes);

  Example() {
    numbers<std::uint16_t>(at.present_at)[0] = 4;
    numbers<std::uint16_t>(at.present_at)[1] = 3;
    // coordinate 0 of the group's words: counts 4 3 2 1 0 4 3 2 1 0 4 3 2
    numbers<std::uint32_t>(at.packed_at)[0] = 0xF01A3909u;
    // coordinate 1: 0 everywhere but a 1 in the last word
    numbers<std::uint32_t>(at.packed_at)[1] = 4;
    plane(0)[0] = 0b01;  // word 13: count 4 at coordinate 1, 1 at 0
    plane(2)[0] = 0b10;
    plane(0)[1] = 0b11;  // word 14, the first of "b": 3 at coordinate 0, 1 at 1
    plane(1)[1] = 0b01;
  }

  template <typename T>
  std::span<T> numbers(std::size_t offset) {
    return values_at<T>(std::span(frame), offset, (frame.size() - offset) / sizeof(T));
  }
  std::span<std::uint64_t> plane(std::size_t p) {
    return numbers<std::uint64_t>(at.planes_at).subspan(p * at.plane_words, at.plane_words);
  }

  std::string error() const {
    try {
      check_counts({frame, shard, 7, "test"}, kWorld, form);
    } catch (const CommError& e) {
      return e.what();
    }
    return "";
  }
};

TEST(PackedCounts, FrameHasTheseBytes) {
  Example example;
  std::vector<int> payload = {
      4,    0,    3,    0,    0, 0, 0, 0,  // present: 4 ranks in "a", 3 in "b"
      0x09, 0x39, 0x1A, 0xF0, 4, 0, 0, 0,  // coordinates 0 and 1 of words 0 to 12
  };
  payload.resize(8 + 256, 0);  // coordinates 2 to 63
  for (const int low_byte : {1, 3, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0}) {
    payload.push_back(low_byte);  // words 13 to 16: three planes
    payload.resize(payload.size() + 7, 0);
  }
  ASSERT_EQ(example.frame.size(), 64 + payload.size());
  for (std::size_t i = 0; i < payload.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(example.frame[64 + i]), payload[i]) << "byte " << i;
  }
  EXPECT_EQ(example.error(), "");
}

// The example's packed words are those that the kernel writes for its counts.
TEST(PackedCounts, ExamplesWordsHoldItsCounts) {
  std::uint64_t v = 0;
  for (const std::uint64_t count : {4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4, 3, 2}) v = 5 * v + count;
  const std::uint64_t m = 1'220'703'125;  // 5^13
  EXPECT_EQ(((v << 32) + m - 1) / m, 0xF01A3909u);
  EXPECT_EQ(((std::uint64_t{1} << 32) + m - 1) / m, 4u);
}

TEST(PackedCounts, RangesFollowThePieces) {
  const Example example;
  const auto ranges = count_ranges(example.frame, example.shard, example.at);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].n_words(), 14u);
  EXPECT_EQ(ranges[0].present, 4);
  EXPECT_EQ(ranges[1].first_word, 14u);
  EXPECT_EQ(ranges[1].n_words(), 3u);
  EXPECT_EQ(ranges[1].present, 3);
}

template <typename Change>
std::string error_after(const Change& change) {
  Example example;
  change(example);
  return example.error();
}

std::string error_with_present(std::size_t piece, std::uint16_t n) {
  return error_after([=](Example& e) { e.numbers<std::uint16_t>(e.at.present_at)[piece] = n; });
}

TEST(PackedCounts, RefusesMoreRanksThanThereAre) {
  EXPECT_NE(
      error_with_present(0, 5).find("test: the frame from rank 7 says that 5 of 4 ranks have"),
      std::string::npos);
  EXPECT_NE(error_with_present(2, 1).find("beyond its 2 pieces"), std::string::npos);
}

TEST(PackedCounts, RefusesCountsOfMoreRanksThanArePresent) {
  // planes: 5 ranks at a coordinate of "a", 4 at one of "b", any at all where nobody is present
  EXPECT_NE(error_after([](Example& e) { e.plane(0)[0] = 0b11; }).find("more than the 4 ranks"),
            std::string::npos);
  EXPECT_NE(error_after([](Example& e) { e.plane(2)[1] = 1 << 5; }).find("more than the 3 ranks"),
            std::string::npos);
  EXPECT_NE(error_with_present(1, 0).find("more than the 0 ranks present in tensor 1"),
            std::string::npos);
  // packed: the same counts are fine with 4 ranks present, and one too many with 3
  EXPECT_NE(error_with_present(0, 3).find("counts more than the 3 ranks present in tensor 0"),
            std::string::npos);
}

TEST(PackedCounts, RefusesAnySizeButItsOwn) {
  const Example example;
  for (std::size_t n = 0; n < 600; ++n) {
    if (n == example.frame.size()) continue;
    const std::vector<std::byte> other(n);
    EXPECT_THROW(check_counts({other, example.shard, 0, "test"}, 4, example.form), CommError)
        << n << " bytes";
  }
}

}  // namespace
}  // namespace pride
