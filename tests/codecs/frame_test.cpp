// Frame headers: these exact bytes, round trips, and every single corrupted byte is refused.
// SPDX-License-Identifier: Apache-2.0
// The bytes are the worked example of docs/wire_format.md.
#include "codecs/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

// Rank 0 of 2 sends the signs of shard 1, the coordinates 64..69 of a tensor of 70, at step 3:
// + - + + - -, nothing absent.
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
const std::vector<std::byte> kPayload = bytes({0, 0, 0, 0, 0, 0, 0, 0, 0x0D, 0, 0, 0, 0, 0, 0, 0});

std::vector<std::byte> example_frame() {
  std::vector<std::byte> frame(kHeaderBytes + kPayload.size());
  std::copy(kPayload.begin(), kPayload.end(), frame.begin() + kHeaderBytes);
  seal(example_header(), std::span(frame).first(kHeaderBytes), {kPayload});
  return frame;
}

std::optional<Poison> open_frame(std::span<const std::byte> frame, const FrameHeader& expected) {
  return open(frame.first(kHeaderBytes), {frame.subspan(kHeaderBytes)}, expected, "test");
}

TEST(Frame, ProducesTheseBytes) {
  const auto expected = bytes({
      'P',  'R',  'D',  '1',  1,    0,    1,    0,     // magic, version 1, codec sign, no flags
      0,    0,    0,    0,    0,    0,    1,    0,     // bucket 0, rank 0, weight 1
      3,    0,    0,    0,    0,    0,    0,    0,     // step
      64,   0,    0,    0,    0,    0,    0,    0,     // coordinates of the shard
      16,   0,    0,    0,    0,    0,    0,    0,     // payload bytes
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // digest of the step's scalars
      0,    0,    0,    0,    0,    0,    0,    0,     // poison: tensor, rank
      0x07, 0xCC, 0xB0, 0x34, 0x57, 0x6B, 0x47, 0x28,  // checksum
      0,    0,    0,    0,    0,    0,    0,    0,     // absent bits
      0x0D, 0,    0,    0,    0,    0,    0,    0,     // signs: coordinates 0, 2, 3 are +
  });
  const auto frame = example_frame();
  ASSERT_EQ(frame.size(), expected.size());
  for (std::size_t i = 0; i < frame.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(frame[i]), std::to_integer<int>(expected[i])) << "byte " << i;
  }
}

TEST(Frame, RoundTripsPoison) {
  FrameHeader h = example_header();
  h.poison = Poison{513, 70000};
  auto frame = example_frame();
  seal(h, std::span(frame).first(kHeaderBytes), {kPayload});
  const auto poison = open_frame(frame, example_header());
  ASSERT_TRUE(poison.has_value());
  EXPECT_EQ(poison->rank, 513);
  EXPECT_EQ(poison->tensor, 70000u);
  EXPECT_FALSE(open_frame(example_frame(), example_header()).has_value());
}

TEST(Frame, RefusesEveryCorruptedByte) {
  const auto good = example_frame();
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(flip);
      EXPECT_THROW(open_frame(bad, example_header()), CommError) << "byte " << i << " ^ " << flip;
    }
  }
}

// Every field in which a healthy peer can disagree is named, with its rank and both values.
TEST(Frame, NamesTheFieldThatDisagrees) {
  const auto frame = example_frame();
  const auto error_with = [&](const std::function<void(FrameHeader&)>& change) -> std::string {
    FrameHeader expected = example_header();
    change(expected);
    try {
      open_frame(frame, expected);
    } catch (const CommError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error_with([](auto& h) { h.step = 4; }),
            "test: the frame from rank 0 has step 3, this rank expects 4");
  EXPECT_NE(error_with([](auto& h) { h.codec = Codec::kVote; }).find("codec"), std::string::npos);
  EXPECT_NE(error_with([](auto& h) { h.bucket = 1; }).find("bucket"), std::string::npos);
  EXPECT_NE(error_with([](auto& h) { h.rank = 1; }).find("sender rank"), std::string::npos);
  EXPECT_NE(error_with([](auto& h) { h.weight = 2; }).find("vote weight"), std::string::npos);
  EXPECT_NE(error_with([](auto& h) { h.n_coords = 128; }).find("coordinates"), std::string::npos);
  EXPECT_NE(error_with([](auto& h) { h.scalars = 0; }).find("step scalars"), std::string::npos);
}

// Floats that travel apart from the header are covered by its checksum.
TEST(Frame, ChecksumCoversASecondPart) {
  std::array<float, 4> floats = {1, 2, 3, 4};
  const auto second = std::as_bytes(std::span(floats));
  std::vector<std::byte> header(kHeaderBytes);
  seal(example_header(), header, {kPayload, second});
  EXPECT_NO_THROW(open(header, {kPayload, second}, example_header(), "test"));
  floats[2] = -3;
  EXPECT_THROW(open(header, {kPayload, second}, example_header(), "test"), CommError);
}

}  // namespace
}  // namespace pride
