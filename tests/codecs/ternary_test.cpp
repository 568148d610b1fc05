// Frames of ternary codes and sums: exact bytes, and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the bytes of the worked example in docs/wire_format.md.
#include "codecs/ternary.h"

#include <gtest/gtest.h>

#include <vector>

#include "codecs/made_frames.h"
#include "kernels/kernels.h"

namespace pride::ternary_test {
namespace {

using testing::Bytes;
using testing::error_of;
using testing::expect_refused;
using testing::payload_of;
using testing::zeros;

constexpr int kVoters = 2;

// One tensor of 70 coordinates; shard 1 of two holds the last 6.
const Shard& example() {
  static const Bucket bucket = make_buckets(Layout({{"w", {70}}}), 1 << 20, kVoters)[0];
  return bucket.shards[1];
}

ByteBuffer codes(std::uint64_t plus, std::uint64_t not_minus) {
  ByteBuffer frame = zeros(ternary_frames().bytes(example()));
  const TernaryView view(frame.span().data(), example());
  view.plus[0] = plus;
  view.not_minus[0] = not_minus;
  return frame;
}

std::string codes_error(const ByteBuffer& frame) {
  return error_of(ternary_frames(), frame, example());
}

SumView<std::byte> sums_in(ByteBuffer& frame) { return {frame.span().data(), example(), kVoters}; }

std::string sums_error(const ByteBuffer& frame) {
  return error_of(sum_frames(kVoters), frame, example());
}

// Rank 0 has the codes + 0 - + + -, rank 1 has + - 0 0 + -.
TEST(TernaryFrames, HaveTheBytesOfTheWireFormat) {
  ASSERT_EQ(example().size(), 64u);
  const ByteBuffer zero = codes(0b011001, 0b011011), one = codes(0b010001, 0b011101);
  EXPECT_EQ(payload_of(zero), (Bytes{0,    0, 0, 0, 0, 0, 0, 0,  //
                                     0x19, 0, 0, 0, 0, 0, 0, 0,  //
                                     0x1B, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(codes_error(zero), "");
  EXPECT_EQ(codes_error(one), "");

  ByteBuffer sums = zeros(sum_frames(kVoters).bytes(example()));
  const SumView view = sums_in(sums);
  view.users[0] = 2;
  std::vector<const std::uint64_t*> rows;
  for (const ByteBuffer* frame : {&zero, &one}) {
    const TernaryView up(frame->span().data(), example());
    rows.push_back(up.plus.data());
    rows.push_back(up.not_minus.data());
  }
  kernels::count(rows, 1, view.n_planes, view.planes);
  // sums of t + 1: 4 1 1 3 4 0
  EXPECT_EQ(payload_of(sums), (Bytes{2,    0, 0, 0, 0, 0, 0, 0,  //
                                     0x0E, 0, 0, 0, 0, 0, 0, 0,  //
                                     0x08, 0, 0, 0, 0, 0, 0, 0,  //
                                     0x11, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sums_error(sums), "");
}

TEST(TernaryFrames, TakeTheBytesOfTheWireFormat) {
  const Shard shard = testing::shard_of({{"a", {640}}, {"b", {64}}});
  EXPECT_EQ(ternary_frames().bytes(shard), 64u + 8 + 704 / 4);
  EXPECT_EQ(sum_frames(1).bytes(shard), 64u + 8 + 2 * 704 / 8);
  EXPECT_EQ(sum_frames(2).bytes(shard), 64u + 8 + 3 * 704 / 8);
  EXPECT_EQ(sum_frames(kMaxTernaryWorld).bytes(shard), 64u + 8 + 16 * 704 / 8);
  const Shard empty = testing::empty_shard();
  for (const FrameKind& kind : {ternary_frames(), sum_frames(3)}) {
    EXPECT_EQ(kind.bytes(empty), 64u) << kind.name;
    EXPECT_EQ(error_of(kind, zeros(64), empty), "") << kind.name;
  }
}

TEST(TernaryFrames, RefuseCodesThatAreNone) {
  expect_refused(codes_error(codes(1, 0)), "has a code that is none of -1, 0, +1");
  expect_refused(codes_error(codes(0, 0x40)), "has bits set beyond the end of tensor 0");
  ByteBuffer unused = codes(0, 0);
  unused.span()[kHeaderBytes] = std::byte{2};
  expect_refused(codes_error(unused), "has unused bits set after its 1 pieces");
}

TEST(TernaryFrames, RefuseSumsThatCannotBe) {
  const auto refused = [](std::uint16_t users, std::size_t plane, std::uint64_t bits,
                          const std::string& why) {
    ByteBuffer frame = zeros(sum_frames(kVoters).bytes(example()));
    const SumView view = sums_in(frame);
    view.users[0] = users;
    view.planes[0] = bits;
    view.planes[plane] = bits;
    expect_refused(sums_error(frame), why);
  };
  refused(2, 2, 1, "has a sum that 2 ranks cannot have");  // 5
  refused(1, 1, 1, "has a sum that 1 ranks cannot have");  // 3
  refused(3, 0, 0, "counts 3 of 2 ranks as users of tensor 0");
  ByteBuffer padded = zeros(sum_frames(kVoters).bytes(example()));
  padded.span()[kHeaderBytes + 4] = std::byte{1};
  expect_refused(sums_error(padded), "has nonzero padding after the counts of its 1 pieces");
}

TEST(TernaryFrames, RefuseSumsThatForgetThisRank) {
  const std::vector<char> used_here = {0}, unused_here = {1};
  const auto error_with = [](std::uint16_t users, std::span<const char> unused) {
    ByteBuffer frame = zeros(sum_frames(kVoters).bytes(example()));
    sums_in(frame).users[0] = users;
    return testing::result_error_of(sum_frames(kVoters), frame, example(), unused);
  };
  EXPECT_EQ(error_with(1, used_here), "");
  EXPECT_EQ(error_with(2, used_here), "");
  EXPECT_EQ(error_with(0, unused_here), "");
  EXPECT_EQ(error_with(1, unused_here), "");
  expect_refused(error_with(0, used_here),
                 "counts 0 of 2 ranks as users of tensor 0, which this rank");
  expect_refused(error_with(2, unused_here),
                 "counts 2 of 2 ranks as users of tensor 0, which this rank does not use");
}

}  // namespace
}  // namespace pride::ternary_test
