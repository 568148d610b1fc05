// Frame headers: exact bytes, round trips, and a refusal for each single corrupted byte. Unused
// bits: participation by piece, and runs of equal participation.
// SPDX-License-Identifier: Apache-2.0
// The bytes are the worked example of docs/wire_format.md.
#include "codecs/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "codecs/made_frames.h"
#include "pride/digest.h"
#include "support/texts.h"

namespace pride::frame_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (const int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

// Rank 0 of 2 sends the signs of shard 1, the coordinates 64..69 of a tensor of 70, at step 3:
// + - + + - -, nothing unused.
FrameHeader example_header() {
  FrameHeader h;
  h.codec = Codec::kSign;
  h.bucket = 0;
  h.rank = 0;
  h.step = 3;
  h.n_coords = 64;
  h.scalars = 0x1122334455667788;
  return h;
}
const Bytes kPayload = bytes({0, 0, 0, 0, 0, 0, 0, 0, 0x0D, 0, 0, 0, 0, 0, 0, 0});

Bytes frame_of(const FrameHeader& h) {
  Bytes frame(kHeaderBytes + kPayload.size());
  std::copy(kPayload.begin(), kPayload.end(), frame.begin() + kHeaderBytes);
  seal(h, frame);
  return frame;
}

Bytes example_frame() { return frame_of(example_header()); }

std::string error_of(const Bytes& frame, const FrameHeader& expected = example_header()) {
  return texts::error_of<CommError>([&] { open({frame}, expected, "test"); });
}

// The example with one field of its header overwritten, and a valid checksum.
template <typename T>
std::string error_with(std::size_t at, T value) {
  Bytes frame = example_frame();
  const auto put = [&](std::size_t offset, const auto& number) {
    std::ranges::copy(std::as_bytes(std::span(&number, 1)), frame.data() + offset);
  };
  put(at, value);
  const std::span<const std::byte> whole = frame;
  put(56, hash_bytes(whole.subspan(64), hash_bytes(whole.first(56))));
  return error_of(frame);
}

TEST(Frame, ProducesTheseBytes) {
  const auto expected = bytes({
      'P',  'R',  'D',  '1',  3,    0,    1,    0,     // magic, version 3, codec sign, no flags
      0,    0,    0,    0,    0,    0,    1,    0,     // bucket 0, rank 0, weight 1
      3,    0,    0,    0,    0,    0,    0,    0,     // step
      64,   0,    0,    0,    0,    0,    0,    0,     // coordinates of the shard
      16,   0,    0,    0,    0,    0,    0,    0,     // payload bytes
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // digest of the step's scalars
      0,    0,    0,    0,    0,    0,    0,    0,     // not finite: tensor, rank
      0x40, 0x2C, 0x38, 0xDC, 0xD3, 0x48, 0x0C, 0x63,  // checksum
      0,    0,    0,    0,    0,    0,    0,    0,     // unused bits
      0x0D, 0,    0,    0,    0,    0,    0,    0,     // signs: coordinates 0, 2, 3 are +
  });
  const auto frame = example_frame();
  ASSERT_EQ(frame.size(), expected.size());
  for (std::size_t i = 0; i < frame.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(frame[i]), std::to_integer<int>(expected[i])) << "byte " << i;
  }
}

TEST(Frame, RoundTripsTheNonFiniteFlag) {
  FrameHeader h = example_header();
  h.non_finite = NonFinite{513, 70000};
  const auto non_finite = open({frame_of(h)}, example_header(), "test");
  ASSERT_TRUE(non_finite.has_value());
  EXPECT_EQ(non_finite->rank, 513);
  EXPECT_EQ(non_finite->tensor, 70000u);
  EXPECT_FALSE(open({example_frame()}, example_header(), "test").has_value());
}

TEST(Frame, RoundTripsTheNonFiniteFlagOfASum) {
  FrameHeader h = example_header();
  h.non_finite = NonFinite{NonFinite::kSum, 2};
  const auto frame = frame_of(h);
  for (std::size_t i = 52; i < 56; ++i) EXPECT_EQ(frame[i], std::byte{0xFF});
  EXPECT_EQ(open({frame}, example_header(), "test"), h.non_finite);
}

TEST(Frame, RefusesEveryCorruptedByte) {
  const auto good = example_frame();
  EXPECT_EQ(error_of(good), "");
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(flip);
      EXPECT_NE(error_of(bad), "") << "byte " << i << " ^ " << flip;
    }
  }
}

// A frame that is truncated or extended, and one with another size in its header.
TEST(Frame, RefusesAnySizeButItsOwn) {
  const auto good = example_frame();
  for (std::size_t n = kHeaderBytes; n < 200; ++n) {
    auto other = good;
    other.resize(n);
    EXPECT_EQ(error_of(other) == "", n == good.size()) << n << " bytes";
  }
  EXPECT_EQ(error_with<std::uint64_t>(32, 17),
            "test: the frame from rank 0 has payload bytes 17, this rank expects 16");
}

// Every field that can differ on a healthy peer is named, with the peer's rank and both values.
TEST(Frame, NamesTheFieldThatDisagrees) {
  const auto frame = example_frame();
  const auto error_when = [&](const std::function<void(FrameHeader&)>& change) {
    FrameHeader expected = example_header();
    change(expected);
    return error_of(frame, expected);
  };
  EXPECT_EQ(error_when([](auto& h) { h.step = 4; }),
            "test: the frame from rank 0 has step 3, this rank expects 4");
  EXPECT_NE(error_when([](auto& h) { h.codec = Codec::kVote; }).find("codec"), std::string::npos);
  EXPECT_NE(error_when([](auto& h) { h.bucket = 1; }).find("bucket"), std::string::npos);
  EXPECT_NE(error_when([](auto& h) { h.rank = 1; }).find("sender rank"), std::string::npos);
  EXPECT_NE(error_when([](auto& h) { h.weight = 2; }).find("vote weight"), std::string::npos);
  EXPECT_NE(error_when([](auto& h) { h.n_coords = 128; }).find("coordinates"), std::string::npos);
  EXPECT_NE(error_when([](auto& h) { h.scalars = 0; }).find("step scalars"), std::string::npos);
}

TEST(Frame, RefusesFlagsThatMeanNothingAndFieldsOfAFlagThatIsNotThere) {
  EXPECT_EQ(error_with<std::uint8_t>(6, 1), "");  // as it was: the codec
  EXPECT_NE(error_with<std::uint8_t>(7, 2).find("flags 2"), std::string::npos);
  EXPECT_NE(error_with<std::uint8_t>(7, 3).find("flags 3"), std::string::npos);
  EXPECT_NE(error_with<std::uint32_t>(48, 1).find("no non-finite flag, but tensor 1"),
            std::string::npos);
  EXPECT_NE(error_with<std::uint32_t>(52, 1).find("no non-finite flag, but rank 1"),
            std::string::npos);
}

// A body sent apart from the head is covered by the head's checksum.
TEST(Frame, ChecksumCoversTheBody) {
  std::array<float, 4> floats = {1, 2, 3, 4};
  const auto body = std::as_bytes(std::span(floats));
  Bytes head = example_frame();
  seal(example_header(), head, body);
  const Frame frame{head, body};
  EXPECT_EQ(frame.payload_bytes(), 32u);
  EXPECT_NO_THROW(open(frame, example_header(), "test"));
  floats[2] = -3;
  EXPECT_THROW(open(frame, example_header(), "test"), CommError);
}

TEST(Frame, HeaderHasTheSizeOfThePayload) {
  const auto frame = example_frame();
  const auto header = std::span(frame).first(kHeaderBytes);
  EXPECT_EQ(claimed_payload(header, 16, 5, "test"), 16u);
  const auto error_of_header = [&](std::size_t byte, std::size_t most) -> std::string {
    Bytes other(header.begin(), header.end());
    other[byte] ^= std::byte{0x80};
    return texts::error_of<CommError>([&] { claimed_payload(other, most, 5, "test"); });
  };
  EXPECT_EQ(error_of_header(63, 16), "");  // only the checksum of the whole frame detects this
  EXPECT_EQ(error_of_header(63, 15),
            "test: the frame from rank 5 claims 16 bytes of payload, the maximum is 15");
  EXPECT_NE(error_of_header(39, 1 << 20).find("the maximum is 1048576"), std::string::npos);
  EXPECT_NE(error_of_header(0, 16).find("magic"), std::string::npos);
  EXPECT_NE(error_of_header(4, 16).find("version"), std::string::npos);
}

TEST(Frame, OfVersion1SaysWhatIsDifferent) {
  EXPECT_EQ(error_with<std::uint16_t>(4, 1),
            "test: the frame from rank 0 has version 1, this rank expects 3: run the same version "
            "of pride on all ranks; each version decides zeros and ties with other bits");
}

// ---- Unused bits. ------------------------------------------------------------------------------

TEST(UnusedBitsFrame, SendsFloatsApart) {
  const Shard shard = make_buckets(Layout({{"w", {640}}}), 1 << 30, 2)[0].shards[0];
  const FrameKind dense = unused_bits_frames(Codec::kDense, "dense", 4);
  EXPECT_EQ(dense.bytes(shard), 72u);
  EXPECT_EQ(dense.body_bytes(shard), 320u * 4);
  EXPECT_EQ(dense.all_bytes(shard), 72u + 320 * 4);
  EXPECT_EQ(unused_bits_frames(Codec::kDenseBf16, "dense bf16", 2).body_bytes(shard), 320u * 2);
}

TEST(UnusedBitsFrame, OfAnEmptyShardIsAHeader) {
  const Shard shard = testing::empty_shard();
  const FrameKind dense = unused_bits_frames(Codec::kDense, "dense", 4);
  EXPECT_EQ(dense.all_bytes(shard), 64u);
  EXPECT_EQ(testing::error_of(dense, testing::zeros(64), shard), "");
}

TEST(UnusedBitsFrame, RefusesBitsWhereNoPieceIsAndAResultThatForgetsThisRank) {
  const Shard shard = testing::shard_of({{"a", {70}}, {"b", {3}}});
  const FrameKind kind = unused_bits_frames(Codec::kMean, "mean", 4);
  ByteBuffer frame = testing::zeros(kind.bytes(shard));
  const auto unused = unused_bits(frame.span().data(), shard);
  const std::vector<char> used_here = {0, 0}, unused_here = {1, 0};
  unused[0] = 1;
  EXPECT_EQ(testing::error_of(kind, frame, shard), "");
  EXPECT_EQ(testing::result_error_of(kind, frame, shard, unused_here), "");
  testing::expect_refused(testing::result_error_of(kind, frame, shard, used_here),
                          "marks tensor 0 as unused on all ranks; this rank uses it");
  unused[0] = 4;
  testing::expect_refused(testing::error_of(kind, frame, shard),
                          "has unused bits set after its 2 pieces");
}

// Three words, one and one; and the unused bits of three ranks.
struct ThreeRanks {
  Shard shard = testing::shard_of({{"a", {130}}, {"b", {64}}, {"c", {3}}});
  std::vector<ByteBuffer> buffers;
  std::vector<Frame> frames;

  explicit ThreeRanks(std::array<std::uint64_t, 3> unused) {
    const FrameKind kind = unused_bits_frames(Codec::kDense, "dense");
    for (const std::uint64_t bits : unused) {
      buffers.push_back(testing::zeros(kind.bytes(shard)));
      unused_bits(buffers.back().span().data(), shard)[0] = bits;
    }
    for (const ByteBuffer& buffer : buffers) frames.push_back({buffer.span()});
  }
};

TEST(UnusedBits, AreCombinedToPiecesThatNoRankUses) {
  const auto combined = [](const ThreeRanks& ranks) {
    std::vector<std::uint64_t> unused(1);
    mark_unused_by_all(ranks.frames, ranks.shard, unused);
    return unused[0];
  };
  EXPECT_EQ(combined(ThreeRanks({0b000, 0b010, 0b101})), 0b000u);
  EXPECT_EQ(combined(ThreeRanks({0b110, 0b010, 0b111})), 0b010u);
  EXPECT_EQ(combined(ThreeRanks({0b111, 0b111, 0b111})), 0b111u);
}

TEST(UnusedBits, SayHowManyRanksUseAPiece) {
  const ThreeRanks ranks({0b000, 0b010, 0b101});
  std::vector<std::uint16_t> users(3);
  count_users(ranks.shard, ranks.frames, users);
  EXPECT_EQ(users, (std::vector<std::uint16_t>{2, 2, 2}));
  const ThreeRanks fewer({0b100, 0b101, 0b101});
  count_users(fewer.shard, fewer.frames, users);
  EXPECT_EQ(users, (std::vector<std::uint16_t>{1, 3, 0}));
}

using Users = std::vector<std::size_t>;

TEST(Runs, AreOneWhereAllRanksUseTheSame) {
  for (const std::uint64_t unused : {0b000, 0b111}) {
    const ThreeRanks ranks({0b000, unused, 0b000});
    const auto runs = runs_of(ranks.shard, ranks.frames);
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].first_word, 0u);
    EXPECT_EQ(runs[0].n_words, 5u);
    EXPECT_EQ(runs[0].frames, unused == 0 ? (Users{0, 1, 2}) : (Users{0, 2}));
  }
}

TEST(Runs, EndWhereOtherRanksBegin) {
  const ThreeRanks ranks({0b000, 0b010, 0b101});
  const auto runs = runs_of(ranks.shard, ranks.frames);
  const std::vector<std::size_t> first = {0, 3, 4}, n = {3, 1, 1};
  const std::vector<Users> users = {{0, 1}, {0, 2}, {0, 1}};
  ASSERT_EQ(runs.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(runs[i].first_word, first[i]) << "run " << i;
    EXPECT_EQ(runs[i].n_words, n[i]) << "run " << i;
    EXPECT_EQ(runs[i].frames, users[i]) << "run " << i;
  }
  EXPECT_TRUE(runs_of(testing::empty_shard(), {}).empty());
}

}  // namespace
}  // namespace pride::frame_test
