// Frames of levels, roll calls and values: exact bytes, what comes back, and what is refused.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the bytes of the worked examples in docs/wire_format.md.
#include "codecs/levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codecs/payload.h"
#include "pride/error.h"
#include "pride/random_bits.h"

namespace pride {
namespace {

constexpr int kFrom = 7;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Kind = ValueFormat::Kind;
using Bytes = std::vector<unsigned>;

ByteBuffer zeros(std::size_t n) {
  ByteBuffer bytes;
  bytes.resize(n);
  std::ranges::fill(bytes.span(), std::byte{0});
  return bytes;
}

Bytes payload_of(const ByteBuffer& frame) {
  Bytes bytes;
  for (const std::byte b : frame.span().subspan(kHeaderBytes)) {
    bytes.push_back(std::to_integer<unsigned>(b));
  }
  return bytes;
}

// The error of a check of this frame, "" if it is taken.
template <typename Check>
std::string error_of(const ByteBuffer& frame, const Shard& shard, const Check& check) {
  static const std::string where = "here";
  try {
    check(ReceivedFrame{frame.span(), shard, kFrom, where});
  } catch (const CommError& e) {
    return e.what();
  }
  return "";
}

void expect_refused(const std::string& error, const std::string& why) {
  EXPECT_NE(error.find("here: the frame from rank 7 has "), std::string::npos) << "'" << error;
  EXPECT_NE(error.find(why), std::string::npos) << "'" << error << "' instead of " << why;
}

// ---- Levels. -----------------------------------------------------------------------------------

// 66 coordinates, and 3 that are absent; 3 bits.
struct Example {
  static constexpr int kBits = 3;
  Shard shard = make_buckets(Layout({{"a", {66}}, {"b", {3}}}), 1 << 20, 1)[0].shards[0];
  LevelFrame at{shard, kBits};
  ByteBuffer frame = zeros(at.bytes);

  Example() {
    std::vector<std::int8_t> q(66);
    q[0] = 3, q[1] = -3, q[64] = -1, q[65] = 2;
    kernels::pack_levels(q, at.shape, 0, lines());
    set_bit(words_at(frame.span(), at.absent_at, at.absent_words), 1);
  }
  std::span<std::uint64_t> lines() { return words_at(frame.span(), at.lines_at, at.shape.size()); }
  // Bit `bit` of the code of coordinate i of the shard.
  void set(int bit, std::size_t i) {
    set_bit(lines(),
            64 * (at.shape.at(i / 64) + static_cast<std::size_t>(bit) * at.shape.width(i / 64)) +
                i % 64);
  }
  std::string levels_error() const {
    return error_of(frame, shard, [](const ReceivedFrame& f) { check_levels(f, kBits); });
  }
  std::string codes_error() const {
    return error_of(frame, shard, [](const ReceivedFrame& f) { check_codes(f, kBits); });
  }
};

TEST(LevelFrames, HaveTheBytesOfTheWireFormat) {
  const Example example;
  EXPECT_EQ(payload_of(example.frame), (Bytes{0x02, 0,    0,    0,    0,    0,    0,    0,     //
                                              0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                              0x02, 0,    0,    0,    0,    0,    0,    0,     //
                                              0,    0,    0,    0,    0,    0,    0,    0,     //
                                              0xFD, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                              0x01, 0,    0,    0,    0,    0,    0,    0,     //
                                              0,    0,    0,    0,    0,    0,    0,    0,     //
                                              0x01, 0,    0,    0,    0,    0,    0,    0,     //
                                              0x02, 0,    0,    0,    0,    0,    0,    0,     //
                                              0,    0,    0,    0,    0,    0,    0,    0}));
  EXPECT_EQ(example.levels_error(), "");
  EXPECT_EQ(example.codes_error(), "");
}

TEST(LevelFrames, HoldTheBitsOfALevelForEachCoordinate) {
  const auto buckets = make_buckets(Layout({{"a", {10'000}}, {"b", {70}}}), 1 << 20, 3);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const Shard& shard : buckets[0].shards) {
      const LevelFrame at(shard, bits);
      EXPECT_EQ(at.bytes, 64 + 8 * ((shard.pieces.size() + 63) / 64) +
                              shard.size() / 8 * static_cast<std::size_t>(bits));
    }
  }
  const Shard empty = make_buckets(Layout({{"w", {1}}}), 1, 3)[0].shards[0];
  ASSERT_EQ(empty.size(), 0u);
  EXPECT_EQ(LevelFrame(empty, 4).bytes, 64u);
  EXPECT_EQ(error_of(zeros(64), empty, [](const auto& f) { check_levels(f, 4); }), "");
  EXPECT_EQ(error_of(zeros(64), empty, [](const auto& f) { check_codes(f, 4); }), "");
}

TEST(LevelFrames, RefuseBitsWhereNoLevelIs) {
  for (int bit = 0; bit < Example::kBits; ++bit) {
    Example beyond;
    beyond.set(bit, 66);
    expect_refused(beyond.levels_error(), "levels beyond the end of tensor 0");
    Example last;
    last.set(bit, 127);
    expect_refused(last.levels_error(), "levels beyond the end of tensor 0");
    Example absent;
    absent.set(bit, 128);
    expect_refused(absent.levels_error(), "levels of tensor 1, which it says is absent");
  }
  Example pieces;
  pieces.frame.span()[kHeaderBytes] = std::byte{0x06};
  expect_refused(pieces.levels_error(), "absent bits beyond its 2 pieces");
}

TEST(LevelFrames, RefuseACodeThatNoLevelHas) {
  for (const std::size_t i : {0, 1, 63, 64, 65}) {
    Example wrong;
    for (int bit = 0; bit < Example::kBits; ++bit) wrong.set(bit, i);
    EXPECT_EQ(wrong.levels_error(), "") << "coordinate " << i << ": the vote looks for these";
    expect_refused(wrong.codes_error(), "a code that no level has in tensor 0");
  }
}

// ---- The roll call. ----------------------------------------------------------------------------

// Two tensors of 70 coordinates, a shard each.
struct RollCall {
  Bucket bucket = make_buckets(Layout({{"a", {70}}, {"b", {70}}}), 1 << 20, 2)[0];
  RollCallFrame at{bucket};
  ByteBuffer frame = zeros(at.bytes);

  std::span<std::uint64_t> absent() {
    return words_at(frame.span(), at.absent_at, at.absent_words);
  }
  std::string error() const {
    return error_of(frame, bucket.shards[0],
                    [&](const ReceivedFrame& f) { check_roll_call(f, bucket); });
  }
};

TEST(RollCallFrames, HaveTheBytesOfTheWireFormat) {
  RollCall roll;
  ASSERT_EQ(roll.at.first_piece[1], 1u);
  set_bit(roll.absent(), roll.at.first_piece[1]);
  EXPECT_EQ(payload_of(roll.frame), (Bytes{2, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(roll.error(), "");
}

TEST(RollCallFrames, RefuseBitsWhereNoPieceIs) {
  RollCall pieces;
  set_bit(pieces.absent(), 2);
  expect_refused(pieces.error(), "absent bits beyond the 2 pieces of the bucket");
}

// The bits of sixty-four pieces and more, and of shards without any.
TEST(RollCallFrames, NumberThePiecesThroughAllShards) {
  std::vector<TensorSpec> specs;
  for (int t = 0; t < 65; ++t) specs.push_back({.name = concat("t", t), .shape = {1}});
  for (const int world : {1, 2, 70}) {
    const Bucket bucket = make_buckets(Layout(specs), 1 << 20, world)[0];
    const RollCallFrame at(bucket);
    EXPECT_EQ(at.n_pieces, 65u);
    EXPECT_EQ(at.bytes, 64u + 16) << "N = " << world;
    std::size_t piece = 0;
    for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
      EXPECT_EQ(at.first_piece[j], piece) << "shard " << j;
      piece += bucket.shards[j].pieces.size();
    }
  }
}

// ---- Values. -----------------------------------------------------------------------------------

const ValueFormat kFloat32{Kind::kFloat32, 32}, kBFloat16{Kind::kBFloat16, 16};

ValueFormat levels(int bits) { return {Kind::kLevels, bits}; }

std::string values_error(const ByteBuffer& frame, const ValueFrame& at) {
  const Shard shard{.begin = 0, .end = at.n, .pieces = {}};
  return error_of(frame, shard, [&](const ReceivedFrame& f) { check_values(f, at); });
}

// Written, taken, and read.
std::vector<float> there_and_back(const std::vector<float>& values, ValueFormat format) {
  const ValueFrame at(values.size(), format);
  ByteBuffer frame = zeros(at.bytes);
  std::ranges::fill(frame.span(), std::byte{0xFF});  // padding is written, too
  write_values(values, at, frame.span());
  EXPECT_EQ(values_error(frame, at), "");
  std::vector<float> back(values.size());
  read_values(frame.span(), at, back);
  return back;
}

// A few sizes of magnitude, and zeros of both signs.
std::vector<float> some_values(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t h = mix64(5, i);
    const float x = (static_cast<float>(h >> 40) - 0x1p23f) * 0x1p-23f;
    values[i] = h % 11 == 0 ? 0.0f * x : std::ldexp(x, static_cast<int>(i / 64 % 7) * 20 - 60);
  }
  return values;
}

TEST(ValueFrames, HaveTheBytesOfTheWireFormat) {
  std::vector<float> values(64);
  values[0] = 3, values[1] = -1;
  const ValueFrame at(64, levels(3));
  ByteBuffer frame = zeros(at.bytes);
  write_values(values, at, frame.span());
  EXPECT_EQ(payload_of(frame), (Bytes{0,    0,    0x80, 0x3F, 0,    0,    0,    0,     //
                                      0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                      0x01, 0,    0,    0,    0,    0,    0,    0}));
  EXPECT_EQ(there_and_back(values, levels(3)), values);
}

TEST(ValueFrames, TakeTheBytesOfTheWireFormat) {
  for (const std::size_t n : {0, 64, 128, 192, 512, 1024 + 64}) {
    EXPECT_EQ(ValueFrame(n, kFloat32).bytes, 64 + 4 * n);
    EXPECT_EQ(ValueFrame(n, kBFloat16).bytes, 64 + 2 * n);
    for (int bits = 2; bits <= 8; ++bits) {
      EXPECT_EQ(ValueFrame(n, levels(bits)).bytes,
                64 + 8 * ((n + 127) / 128) + n / 8 * static_cast<std::size_t>(bits));
    }
  }
}

TEST(ValueFrames, BringBackFloatsBitForBit) {
  const auto values = some_values(13 * 64);
  const auto back = there_and_back(values, kFloat32);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(values[i])) << i;
  }
}

TEST(ValueFrames, BringBackTheNearestBFloat16) {
  const auto values = some_values(13 * 64);
  const auto back = there_and_back(values, kBFloat16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // the upper half of the bits, rounded to nearest, ties to even
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), upper) << i << ": " << values[i];
  }
}

TEST(ValueFrames, BringBackTheNearestLevel) {
  const auto values = some_values(13 * 64);
  for (int bits = 2; bits <= 8; ++bits) {
    const auto back = there_and_back(values, levels(bits));
    const auto s = static_cast<float>((1 << (bits - 1)) - 1);
    for (std::size_t block = 0; block < 13; ++block) {
      float most = 0;
      for (std::size_t i = 64 * block; i < 64 * block + 64; ++i) {
        most = std::max(most, std::abs(values[i]));
      }
      const float scale = most / s, inv = 1.0f / scale;
      for (std::size_t i = 64 * block; i < 64 * block + 64; ++i) {
        const float q = std::clamp(std::nearbyint(values[i] * inv), -s, s);
        EXPECT_EQ(back[i], q * scale) << bits << " bits, value " << i << " = " << values[i];
      }
    }
  }
}

TEST(ValueFrames, BringBackNothingOfWhatCountsAsZero) {
  for (const float small : {0.0f, -0.0f, 1e-45f, 0x1p-126f, 0x1.FFFFFEp-101f}) {
    const auto back = there_and_back(std::vector<float>(128, small), levels(8));
    EXPECT_TRUE(std::ranges::all_of(back, [](float x) { return x == 0; })) << small;
  }
  const std::vector<float> least(64, 0x1p-100f), most(64, std::numeric_limits<float>::max());
  EXPECT_NEAR(there_and_back(least, levels(8))[0] * 0x1p100f, 1.0f, 1e-6f);
  EXPECT_NEAR(there_and_back(most, levels(2))[63] / most[0], 1.0f, 1e-6f);
}

TEST(ValueFrames, RefuseWhatIsNotFinite) {
  for (const float bad : {kNan, kInf, -kInf}) {
    for (const ValueFormat format : {kFloat32, kBFloat16}) {
      const ValueFrame at(128, format);
      ByteBuffer frame = zeros(at.bytes);
      EXPECT_EQ(values_error(frame, at), "");
      const auto bits = std::bit_cast<std::uint32_t>(bad);
      if (format.kind == Kind::kFloat32) {
        values_at<std::uint32_t>(frame.span(), at.values_at, 128)[70] = bits;
      } else {
        values_at<std::uint16_t>(frame.span(), at.values_at, 128)[70] =
            static_cast<std::uint16_t>(bits >> 16);
      }
      expect_refused(values_error(frame, at), " as value 70");
    }
  }
}

TEST(ValueFrames, RefuseLevelsThatHaveNoValue) {
  const ValueFrame at(3 * 64, levels(5));
  const auto with = [&](std::size_t scale, float value) {
    ByteBuffer frame = zeros(at.bytes);
    values_at<float>(frame.span(), at.scales_at, 4)[scale] = value;
    return values_error(frame, at);
  };
  for (const float bad : {kNan, kInf, -kInf, -1.0f, -0.0f}) {
    expect_refused(with(2, bad), " as a scale");
  }
  EXPECT_EQ(with(2, 1.0f), "");
  expect_refused(with(3, 1.0f), "bits set behind its scales");
  expect_refused(with(1, 1e38f), "1e+38 as a scale, too large for the largest level, at value 64");

  ByteBuffer frame = zeros(at.bytes);
  const auto lines = words_at(frame.span(), at.values_at, 15);
  for (std::size_t b = 0; b < 5; ++b) set_bit(lines, 64 * (3 * b + 2) + 9);
  expect_refused(values_error(frame, at), "a code that no level has");
}

}  // namespace
}  // namespace pride
