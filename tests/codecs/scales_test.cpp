// Frames of scales that ranks share before encode: exact bytes, and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: docs/wire_format.md.
#include <gtest/gtest.h>

#include <cmath>

#include "codecs/made_frames.h"
#include "methods/shared_scales.h"

namespace pride::scales_test {
namespace {

using methods::SharedScales;
using testing::error_of;
using testing::expect_refused;
using testing::zeros;

TEST(ScalesFrames, HaveTheBytesOfTheWireFormatAndRefuseOthers) {
  const Part part = SharedScales(SharedScales::Rule::kLargest, 3).part();
  EXPECT_EQ(part.up.codec, Codec::kScales);
  EXPECT_EQ(part.bucket, 0);
  const Shard& all = part.shards[0];
  ASSERT_EQ(all.size(), 3u);
  ByteBuffer frame = zeros(part.up.bytes(all));
  auto* scales = reinterpret_cast<float*>(frame.span().data() + kHeaderBytes);
  scales[0] = 1;
  scales[2] = 0.5f;
  EXPECT_EQ(testing::payload_of(frame), (testing::Bytes{0, 0, 0x80, 0x3F, 0, 0, 0, 0,  //
                                                        0, 0, 0, 0x3F, 0, 0, 0, 0}));
  EXPECT_EQ(error_of(part.up, frame, all), "");
  for (const float bad : {-1.0f, -0.0f, INFINITY, NAN}) {
    scales[1] = bad;
    expect_refused(error_of(part.up, frame, all), "as scale 1");
  }
  scales[1] = 0;
  frame.span().back() = std::byte{1};
  expect_refused(error_of(part.up, frame, all), "has nonzero padding after its scales");
}

TEST(ScalesFrames, TakeFourBytesAScalePaddedToEight) {
  for (const std::size_t n : {1, 2, 7, 1000}) {
    const Part part = SharedScales(SharedScales::Rule::kMean, n).part();
    EXPECT_EQ(part.up.bytes(part.shards[0]), 64 + 8 * ((n + 1) / 2)) << n;
  }
}

}  // namespace
}  // namespace pride::scales_test
