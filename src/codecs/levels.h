// p-bit levels (up), and values to be averaged over the ranks. Layout and examples:
// docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/frame.h"
#include "kernels/levels.h"
#include "kernels/space.h"

namespace pride {

// A shard's levels, in the lines of kernels/levels.h.
template <typename Byte>
struct LevelView {
  LevelView(Byte* frame, const Shard& shard, int bits) : shape{shard.n_words(), bits} {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(shard.pieces.size()));
    lines = parts.words(shape.size());
    bytes = parts.end();
  }
  kernels::LevelShape shape;
  Words<Byte> unused, lines;
  std::size_t bytes = 0;
};

// Refused: bits outside the pieces, codes of an unused piece. Codes that are no level are detected
// by the vote (kernels::vote_levels), which reads all of them anyway; check_codes then finds the
// sender.
FrameKind level_frames(int bits);
void check_codes(const ReceivedFrame& f, int bits);

// Format of values to be averaged over the ranks.
struct ValueFormat {
  enum class Kind { kFloat32, kBFloat16, kLevels };
  Kind kind = Kind::kFloat32;
  int bits = 32;  // per value; for kLevels 2 to 8, and a bfloat16 for each 64 values
};

// A frame of n values in one of the formats, with unused bits of so many pieces. Parts of other
// formats are empty. `numbers` are the values of formats without levels.
template <typename Byte>
struct ValueView {
  ValueView(Byte* frame, std::size_t n, ValueFormat format, std::size_t pieces = 0)
      : shape{n / 64, format.bits} {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(pieces));
    switch (format.kind) {
      case ValueFormat::Kind::kFloat32:
        numbers = parts.template take<float>(n);
        break;
      case ValueFormat::Kind::kBFloat16:
        numbers = {parts.template take<std::uint16_t>(n).data(), nullptr, n};
        break;
      case ValueFormat::Kind::kLevels:
        scales = parts.template take<BFloat16>(n / 64);
        lines = parts.words(shape.size());
    }
    bytes = parts.end();
  }
  kernels::LevelShape shape;
  Words<Byte> unused;
  BasicFloats<typename Parts<Byte>::template Like<float>> numbers;
  std::span<typename Parts<Byte>::template Like<BFloat16>> scales;
  Words<Byte> lines;
  std::size_t bytes = 0;
};

// Frames of shard.size() values, a multiple of 64. Refused: invalid scales, non-finite values.
// Codec: kValues or kMeanValues.
FrameKind value_frames(Codec codec, ValueFormat format);
// The same of the shard's gradients in levels, with unused bits. Refused, too: levels of an unused
// piece or of its padding. Codec: kGradientLevels or kMeanLevels.
FrameKind gradient_frames(Codec codec, ValueFormat format);

// Encodes values into a frame in the space's memory from value `first`, a multiple of 64, on, and
// decodes them. The decoded values are the same on every rank. A value that is not finite, or its
// scale, is a fault. REQUIRES: formats without levels: values in float32, factor 1.
void write_values(Space& space, const Values& values, const ValueView<std::byte>& frame,
                  std::size_t first, FaultSlot fault);
void read_values(Space& space, const ValueView<const std::byte>& frame, std::size_t first,
                 std::span<float> values);
// On the host. Returns the index of the first value that the format cannot hold, of levels the
// first of its 64; values.size() if there is none.
std::size_t write_values(std::span<const float> values, ValueFormat format,
                         const ValueView<std::byte>& frame, std::size_t first);
// Whole frames on the host.  REQUIRES: values.size() values.
std::size_t write_values(std::span<const float> values, ValueFormat format,
                         std::span<std::byte> frame);
void read_values(std::span<const std::byte> frame, ValueFormat format, std::span<float> values);

}  // namespace pride
