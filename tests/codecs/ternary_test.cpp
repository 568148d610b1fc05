// Frames of ternary codes, sums and scales: exact bytes, and what a reader refuses.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the bytes of the worked example in docs/wire_format.md.
#include "codecs/ternary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "codecs/payload.h"
#include "kernels/kernels.h"
#include "pride/error.h"
#include "pride/wire.h"

namespace pride {
namespace {

// One tensor of 70 coordinates, of which shard 1 of two holds the last 6.
Bucket example() { return make_buckets(Layout({{"w", {70}}}), 1 << 20, 2)[0]; }

std::vector<unsigned> payload_of(const ByteBuffer& frame) {
  std::vector<unsigned> bytes;
  for (const std::byte b : frame.span().subspan(kHeaderBytes)) {
    bytes.push_back(static_cast<unsigned>(b));
  }
  return bytes;
}

ByteBuffer zeros(std::size_t n) {
  ByteBuffer bytes;
  bytes.resize(n);
  for (std::byte& b : bytes.span()) b = std::byte{0};
  return bytes;
}

template <typename Check>
void expect_refused(const Check& check, const std::string& why) {
  try {
    check();
    ADD_FAILURE() << "accepted, though " << why;
  } catch (const CommError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("here: the frame from rank 1 has "), std::string::npos) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  }
}

// Rank 0 has the codes + 0 - + + -, rank 1 has + - 0 0 + -.
ByteBuffer codes(std::uint64_t plus, std::uint64_t not_minus) {
  const TernaryFrame at(example().shards[1]);
  ByteBuffer frame = zeros(at.bytes);
  words_at(frame.span(), at.plus_at, 1)[0] = plus;
  words_at(frame.span(), at.not_minus_at, 1)[0] = not_minus;
  return frame;
}

TEST(TernaryFrames, HaveTheBytesOfTheWireFormat) {
  const Shard shard = example().shards[1];
  ASSERT_EQ(shard.size(), 64u);
  const ByteBuffer zero = codes(0b011001, 0b011011), one = codes(0b010001, 0b011101);
  EXPECT_EQ(payload_of(zero), (std::vector<unsigned>{0,    0, 0, 0, 0, 0, 0, 0,  //
                                                     0x19, 0, 0, 0, 0, 0, 0, 0,  //
                                                     0x1B, 0, 0, 0, 0, 0, 0, 0}));
  check_ternary(zero.span(), shard, 1, "here");
  check_ternary(one.span(), shard, 1, "here");

  const SumFrame at(shard, 2);
  ByteBuffer sums = zeros(at.bytes);
  values_at<std::uint16_t>(sums.span(), at.present_at, 1)[0] = 2;
  const TernaryFrame up(shard);
  std::vector<const std::uint64_t*> rows;
  for (const ByteBuffer* frame : {&zero, &one}) {
    rows.push_back(words_at(frame->span(), up.plus_at, 1).data());
    rows.push_back(words_at(frame->span(), up.not_minus_at, 1).data());
  }
  kernels::count(rows, 1, at.n_planes, words_at(sums.span(), at.planes_at, at.n_planes));
  // sums of t + 1: 4 1 1 3 4 0
  EXPECT_EQ(payload_of(sums), (std::vector<unsigned>{2,    0, 0, 0, 0, 0, 0, 0,  //
                                                     0x0E, 0, 0, 0, 0, 0, 0, 0,  //
                                                     0x08, 0, 0, 0, 0, 0, 0, 0,  //
                                                     0x11, 0, 0, 0, 0, 0, 0, 0}));
  check_sums(sums.span(), shard, 2, 1, "here");
}

TEST(TernaryFrames, RefuseCodesThatAreNone) {
  const Shard shard = example().shards[1];
  expect_refused([&] { check_ternary(codes(1, 0).span(), shard, 1, "here"); }, "none of -1, 0, +1");
  expect_refused([&] { check_ternary(codes(0, 0x40).span(), shard, 1, "here"); },
                 "behind a tensor");
  ByteBuffer absent = codes(0, 0);
  absent.span()[kHeaderBytes] = std::byte{2};
  expect_refused([&] { check_ternary(absent.span(), shard, 1, "here"); }, "behind its pieces");
  expect_refused([&] { check_ternary(absent.span().first(70), shard, 1, "here"); }, "70 bytes");
}

TEST(TernaryFrames, RefuseSumsThatCannotBe) {
  const Shard shard = example().shards[1];
  const SumFrame at(shard, 2);
  const auto refused = [&](std::uint16_t present, std::size_t plane, std::uint64_t bits,
                           const std::string& why) {
    ByteBuffer frame = zeros(at.bytes);
    values_at<std::uint16_t>(frame.span(), at.present_at, 1)[0] = present;
    words_at(frame.span(), at.planes_at, at.n_planes)[0] = bits;
    words_at(frame.span(), at.planes_at, at.n_planes)[plane] = bits;
    expect_refused([&] { check_sums(frame.span(), shard, 2, 1, "here"); }, why);
  };
  refused(2, 2, 1, "a sum that 2 ranks cannot have");  // 5
  refused(1, 1, 1, "a sum that 1 ranks cannot have");  // 3
  refused(3, 0, 0, "3 ranks present of 2");
  ByteBuffer padded = zeros(at.bytes);
  padded.span()[at.present_at + 4] = std::byte{1};
  expect_refused([&] { check_sums(padded.span(), shard, 2, 1, "here"); }, "numbers of ranks");
}

TEST(ScalesFrames, HaveTheBytesOfTheWireFormatAndRefuseOthers) {
  const ScalesFrame at(3);
  ByteBuffer frame = zeros(at.bytes);
  const auto scales = values_at<float>(frame.span(), at.scales_at, 3);
  scales[0] = 1;
  scales[2] = 0.5f;
  EXPECT_EQ(payload_of(frame), (std::vector<unsigned>{0, 0, 0x80, 0x3F, 0, 0, 0, 0,  //
                                                      0, 0, 0, 0x3F, 0, 0, 0, 0}));
  check_scales(frame.span(), 3, 1, "here");
  for (const float bad : {-1.0f, -0.0f, INFINITY, NAN}) {
    scales[1] = bad;
    expect_refused([&] { check_scales(frame.span(), 3, 1, "here"); }, "as scale 1");
  }
  scales[1] = 0;
  frame.span().back() = std::byte{1};
  expect_refused([&] { check_scales(frame.span(), 3, 1, "here"); }, "behind its scales");
}

}  // namespace
}  // namespace pride
