// Samples of a few coordinates of every rank, sent to all: blend, momentum and vote. Layout:
// docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/frame.h"

namespace pride {

// Level of a coordinate whose tensor has no gradient on the rank.
inline constexpr std::int8_t kNoLevel = -128;

// Samples of one rank: the blend u, the momentum m after its update, the level q that was sent.
template <typename Byte>
struct SampleView {
  SampleView(Byte* frame, std::size_t n) {
    Parts<Byte> parts(frame);
    floats = parts.template take<float>(2 * n);
    if (frame != nullptr) {
      u = floats.first(n);
      m = floats.last(n);
    }
    q = parts.template take<std::int8_t>(n);
    bytes = parts.end();
  }
  std::span<typename Parts<Byte>::template Like<float>> floats, u, m;
  std::span<typename Parts<Byte>::template Like<std::int8_t>> q;
  std::size_t bytes = 0;
};

// Frames of shard.size() samples. Refused: non-finite floats, bits after the last level.
FrameKind sample_frames();

// Frames with the concatenated payloads of `voters` frames of samples.
FrameKind all_sample_frames(int voters);

}  // namespace pride
