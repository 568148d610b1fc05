// Frames of levels, participation and values: exact bytes, decoded values, and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the bytes of the worked examples in docs/wire_format.md.
#include "codecs/levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codecs/made_frames.h"
#include "pride/random_bits.h"
#include "routes/protocol.h"

namespace pride::levels_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Kind = ValueFormat::Kind;
using testing::Bytes;
using testing::error_of;
using testing::expect_refused;
using testing::payload_of;
using testing::zeros;

// ---- Levels. -----------------------------------------------------------------------------------

// 66 coordinates, and 3 that are unused; 3 bits.
struct Example {
  static constexpr int kBits = 3;
  FrameKind kind = level_frames(kBits);
  Shard shard = testing::shard_of({{"a", {66}}, {"b", {3}}});
  ByteBuffer frame = zeros(kind.bytes(shard));
  LevelView<std::byte> view{frame.span().data(), shard, kBits};

  Example() {
    std::vector<std::int8_t> q(66);
    q[0] = 3, q[1] = -3, q[64] = -1, q[65] = 2;
    kernels::pack_levels(q, view.shape, 0, view.lines);
    set_bit(view.unused, 1);
  }
  // Bit `bit` of the code of coordinate i of the shard.
  void set(int bit, std::size_t i) {
    const std::size_t line = static_cast<std::size_t>(bit) * view.shape.width(i / 64);
    set_bit(view.lines, 64 * (view.shape.at(i / 64) + line) + i % 64);
  }
  std::string levels_error() const { return error_of(kind, frame, shard); }
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
      EXPECT_EQ(level_frames(bits).bytes(shard),
                64 + 8 * ((shard.pieces.size() + 63) / 64) +
                    shard.size() / 8 * static_cast<std::size_t>(bits));
    }
  }
  const Shard empty = testing::empty_shard();
  EXPECT_EQ(level_frames(4).bytes(empty), 64u);
  EXPECT_EQ(error_of(level_frames(4), zeros(64), empty), "");
  EXPECT_EQ(error_of(zeros(64), empty, [](const auto& f) { check_codes(f, 4); }), "");
}

TEST(LevelFrames, RefuseBitsWhereNoLevelIs) {
  for (int bit = 0; bit < Example::kBits; ++bit) {
    Example beyond;
    beyond.set(bit, 66);
    expect_refused(beyond.levels_error(), "has levels beyond the end of tensor 0");
    Example last;
    last.set(bit, 127);
    expect_refused(last.levels_error(), "has levels beyond the end of tensor 0");
    Example unused;
    unused.set(bit, 128);
    expect_refused(unused.levels_error(), "has levels of tensor 1, which it marks as unused");
  }
  Example pieces;
  pieces.frame.span()[kHeaderBytes] = std::byte{0x06};
  expect_refused(pieces.levels_error(), "has unused bits set after its 2 pieces");
}

TEST(LevelFrames, RefuseACodeThatNoLevelHas) {
  for (const std::size_t i : {0, 1, 63, 64, 65}) {
    Example wrong;
    for (int bit = 0; bit < Example::kBits; ++bit) wrong.set(bit, i);
    EXPECT_EQ(wrong.levels_error(), "") << "coordinate " << i << ": the vote looks for these";
    expect_refused(wrong.codes_error(), "has an invalid code (all bits set) in tensor 0");
  }
}

// ---- Participation. ----------------------------------------------------------------------------

const FrameKind kParticipation = unused_bits_frames(Codec::kParticipation, "participation");

// Two tensors of 70 coordinates, a shard each; the frame covers the whole bucket.
struct Participation {
  Shard whole = whole_of(make_buckets(Layout({{"a", {70}}, {"b", {70}}}), 1 << 20, 2)[0]);
  ByteBuffer frame = zeros(kParticipation.bytes(whole));

  std::span<std::uint64_t> unused() { return unused_bits(frame.span().data(), whole); }
  std::string error() const { return error_of(kParticipation, frame, whole); }
};

TEST(ParticipationFrames, HaveTheBytesOfTheWireFormat) {
  Participation example;
  ASSERT_EQ(example.whole.pieces[1].tensor, 1u);
  set_bit(example.unused(), 1);
  EXPECT_EQ(payload_of(example.frame), (Bytes{2, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(example.error(), "");
}

TEST(ParticipationFrames, RefuseBitsWhereNoPieceIs) {
  Participation example;
  set_bit(example.unused(), 2);
  expect_refused(example.error(), "has unused bits set after its 2 pieces");
}

// The bits of sixty-four pieces and more, and of shards without any.
TEST(ParticipationFrames, NumberThePiecesThroughAllShards) {
  std::vector<TensorSpec> specs;
  for (int t = 0; t < 65; ++t) specs.push_back({.name = concat("t", t), .shape = {1}});
  for (const int world : {1, 2, 70}) {
    const Bucket bucket = make_buckets(Layout(specs), 1 << 20, world)[0];
    const Shard whole = whole_of(bucket);
    ASSERT_EQ(whole.pieces.size(), 65u);
    EXPECT_EQ(kParticipation.bytes(whole), 64u + 16) << "N = " << world;
    std::size_t piece = 0;
    for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
      for (const Piece& p : bucket.shards[j].pieces) {
        EXPECT_EQ(whole.pieces[piece++].begin, p.begin) << "shard " << j;
      }
    }
    EXPECT_EQ(piece, 65u);
  }
}

// ---- Values. -----------------------------------------------------------------------------------

const ValueFormat kFloat32{Kind::kFloat32, 32}, kBFloat16{Kind::kBFloat16, 16};

ValueFormat levels(int bits) { return {Kind::kLevels, bits}; }

FrameKind frames_in(ValueFormat format) { return value_frames(Codec::kValues, format); }

Shard shard_of(std::size_t n) { return {.begin = 0, .end = n, .pieces = {}}; }

ByteBuffer zeros(std::size_t n, ValueFormat format) {
  return testing::zeros(frames_in(format).bytes(shard_of(n)));
}

std::string values_error(const ByteBuffer& frame, std::size_t n, ValueFormat format) {
  return error_of(frames_in(format), frame, shard_of(n));
}

// Numbers of the payload, from byte `at` of the frame on.
template <typename T>
T* numbers(ByteBuffer& frame, std::size_t at) {
  return reinterpret_cast<T*>(frame.span().data() + at);
}

// Written, checked, and read.
std::vector<float> there_and_back(const std::vector<float>& values, ValueFormat format) {
  const std::size_t n = values.size();
  ByteBuffer frame = zeros(n, format);
  std::ranges::fill(frame.span(), std::byte{0xFF});  // padding is written, too
  EXPECT_EQ(write_values(values, format, frame.span()), n);
  EXPECT_EQ(values_error(frame, n, format), "");
  std::vector<float> back(n);
  read_values(frame.span(), format, back);
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
  ByteBuffer frame = zeros(64, levels(3));
  write_values(values, levels(3), frame.span());
  EXPECT_EQ(payload_of(frame), (Bytes{0x80, 0x3F, 0,    0,    0,    0,    0,    0,     //
                                      0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                      0x01, 0,    0,    0,    0,    0,    0,    0}));
  EXPECT_EQ(there_and_back(values, levels(3)), values);
}

// 66 gradients of 2 bits, and 3 of a tensor that is unused.
TEST(GradientFrames, HaveTheBytesOfTheWireFormat) {
  const ValueFormat format = levels(2);
  const FrameKind kind = gradient_frames(Codec::kGradientLevels, format);
  const Shard shard = testing::shard_of({{"a", {66}}, {"b", {3}}});
  ByteBuffer frame = testing::zeros(kind.bytes(shard));
  const ValueView<std::byte> view(frame.span().data(), shard.size(), format, shard.pieces.size());
  set_bit(view.unused, 1);
  std::vector<float> g(66);
  g[0] = 3, g[1] = -3, g[64] = -5;
  std::uint32_t fault = Wire::kNoTensor;
  write_values(Space::host(), Values::of(g), view, 0, {&fault, 0});
  EXPECT_EQ(fault, Wire::kNoTensor);
  EXPECT_EQ(payload_of(frame), (Bytes{0x02, 0,    0,    0,    0,    0,    0,    0,     //
                                      0x40, 0x40, 0xA0, 0x40, 0,    0,    0,    0,     //
                                      0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                      0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  //
                                      0,    0,    0,    0,    0,    0,    0,    0,     //
                                      0x01, 0,    0,    0,    0,    0,    0,    0,     //
                                      0,    0,    0,    0,    0,    0,    0,    0,     //
                                      0,    0,    0,    0,    0,    0,    0,    0}));
  EXPECT_EQ(error_of(kind, frame, shard), "");
}

TEST(ValueFrames, TakeTheBytesOfTheWireFormat) {
  const auto bytes = [](std::size_t n, ValueFormat format) {
    const std::size_t down = value_frames(Codec::kMeanValues, format).bytes(shard_of(n));
    EXPECT_EQ(frames_in(format).bytes(shard_of(n)), down);
    return down;
  };
  for (const std::size_t n : {0, 64, 128, 192, 512, 1024 + 64}) {
    EXPECT_EQ(bytes(n, kFloat32), 64 + 4 * n);
    EXPECT_EQ(bytes(n, kBFloat16), 64 + 2 * n);
    for (int bits = 2; bits <= 8; ++bits) {
      EXPECT_EQ(bytes(n, levels(bits)),
                64 + 8 * ((n + 255) / 256) + n / 8 * static_cast<std::size_t>(bits));
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

// The upper half of the bits, rounded to nearest, ties to even.
std::uint32_t upper_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
}

TEST(ValueFrames, BringBackTheNearestBFloat16) {
  const auto values = some_values(13 * 64);
  const auto back = there_and_back(values, kBFloat16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), upper_half(values[i]))
        << i << ": " << values[i];
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
      const float scale = std::bit_cast<float>(upper_half(most / s)), inv = 1.0f / scale;
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
  const std::vector<float> least(64, 0x1p-100f), most(64, 0x1.fcp127f);
  EXPECT_NEAR(there_and_back(least, levels(8))[0] * 0x1p100f, 1.0f, 0x1p-8f);
  EXPECT_NEAR(there_and_back(most, levels(2))[63] / most[0], 1.0f, 0x1p-8f);
}

TEST(ValueFrames, RefuseWhatIsNotFinite) {
  for (const float bad : {kNan, kInf, -kInf}) {
    for (const ValueFormat format : {kFloat32, kBFloat16}) {
      ByteBuffer frame = zeros(128, format);
      EXPECT_EQ(values_error(frame, 128, format), "");
      const auto bits = std::bit_cast<std::uint32_t>(bad);
      if (format.kind == Kind::kFloat32) {
        numbers<std::uint32_t>(frame, 64)[70] = bits;
      } else {
        numbers<std::uint16_t>(frame, 64)[70] = static_cast<std::uint16_t>(bits >> 16);
      }
      expect_refused(values_error(frame, 128, format), " as value 70");
    }
  }
}

TEST(ValueFrames, RefuseLevelsThatHaveNoValue) {
  // 3 scales and their padding lie at 64, the lines at 72
  constexpr std::size_t n = 3 * 64;
  const auto with = [](std::size_t scale, float value) {
    ByteBuffer frame = zeros(n, levels(5));
    const auto bits = std::bit_cast<std::uint32_t>(value);
    numbers<std::uint16_t>(frame, 64)[scale] = static_cast<std::uint16_t>(bits >> 16);
    return values_error(frame, n, levels(5));
  };
  for (const float bad : {kNan, kInf, -kInf, -1.0f, -0.0f}) {
    expect_refused(with(2, bad), " as a scale");
  }
  EXPECT_EQ(with(2, 1.0f), "");
  expect_refused(with(3, 1.0f), "has nonzero padding after its scales");
  expect_refused(with(1, 0x1p126f),
                 "has 8.50706e+37 as a scale, too large for the largest level, at value 64");

  ByteBuffer frame = zeros(n, levels(5));
  const std::span lines(numbers<std::uint64_t>(frame, 72), 15);
  for (std::size_t b = 0; b < 5; ++b) set_bit(lines, 64 * (3 * b + 2) + 9);
  expect_refused(values_error(frame, n, levels(5)), "has an invalid code (all bits set)");
}

}  // namespace
}  // namespace pride::levels_test
