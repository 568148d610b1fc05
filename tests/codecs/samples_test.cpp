// Frames of samples: exact bytes, and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: docs/wire_format.md.
#include "codecs/samples.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codecs/made_frames.h"

namespace pride::samples_test {
namespace {

using testing::expect_refused;
using testing::offset_of;

Shard shard_of(std::size_t n) { return {.begin = 0, .end = n, .pieces = {}}; }

struct Example {
  FrameKind kind = sample_frames();
  Shard shard = shard_of(3);
  ByteBuffer frame = testing::zeros(kind.bytes(shard));
  SampleView<std::byte> view{frame.span().data(), 3};

  std::string error() const { return testing::error_of(kind, frame, shard); }
};

TEST(SampleFrames, HaveTheBytesOfTheWireFormat) {
  const Example example;
  example.view.u[0] = 1;
  example.view.u[2] = -2;
  example.view.m[1] = 0.5f;
  example.view.q[0] = 1;
  example.view.q[1] = -1;
  example.view.q[2] = kNoLevel;
  EXPECT_EQ(testing::payload_of(example.frame),
            (testing::Bytes{0, 0,    0x80, 0x3F, 0, 0, 0, 0,     // blends: 1, 0,
                            0, 0,    0,    0xC0, 0, 0, 0, 0,     // -2; momenta: 0,
                            0, 0,    0,    0x3F, 0, 0, 0, 0,     // 0.5, 0
                            1, 0xFF, 0x80, 0,    0, 0, 0, 0}));  // levels, padding
  EXPECT_EQ(example.error(), "");
  EXPECT_EQ(offset_of(example.view.u, example.frame), 64u);
  EXPECT_EQ(offset_of(example.view.m, example.frame), 64u + 12);
  EXPECT_EQ(offset_of(example.view.q, example.frame), 64u + 24);
}

TEST(SampleFrames, TakeNineBytesASamplePaddedToEight) {
  const FrameKind kind = sample_frames();
  for (const std::size_t n : {1, 7, 8, 9, 100}) {
    EXPECT_EQ(kind.bytes(shard_of(n)), 64 + (9 * n + 7) / 8 * 8) << n;
    EXPECT_EQ(all_sample_frames(5).bytes(shard_of(n)), 64 + 5 * ((9 * n + 7) / 8 * 8)) << n;
  }
  EXPECT_EQ(kind.bytes(shard_of(7)), 64u + 64);
  EXPECT_EQ(kind.bytes(shard_of(8)), 64u + 72);
  EXPECT_FALSE(kind.unused_bits);
}

TEST(SampleFrames, RefuseWhatIsNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const Example blend, momentum;
    blend.view.u[2] = bad;
    momentum.view.m[1] = bad;
    expect_refused(blend.error(), " as sample 2");
    expect_refused(momentum.error(), " as sample 1");
  }
}

TEST(SampleFrames, RefuseBitsInThePadding) {
  for (std::size_t byte = 64 + 24 + 3; byte < 64 + 32; ++byte) {
    Example example;
    example.frame.span()[byte] = std::byte{0x10};
    expect_refused(example.error(), "has nonzero padding after its samples");
  }
}

}  // namespace
}  // namespace pride::samples_test
