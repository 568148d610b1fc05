// Ternary codes (up) and their sums (down). Layout and examples: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "codecs/frame.h"

namespace pride {

// kernels::count gets two rows per voter, at most kernels::kMaxRows.
inline constexpr int kMaxTernaryWorld = 32767;

// Codes t in {-1, 0, +1}: words of [t = +1], words of [t >= 0].
template <typename Byte>
struct TernaryView {
  TernaryView(Byte* frame, const Shard& shard) {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(shard.pieces.size()));
    plus = parts.words(shard.n_words());
    not_minus = parts.words(shard.n_words());
    bytes = parts.end();
  }
  Words<Byte> unused, plus, not_minus;
  std::size_t bytes = 0;
};

// Bit planes of the sum of t + 1 over the ranks that use the tensor.
template <typename Byte>
struct SumView {
  SumView(Byte* frame, const Shard& shard, int voters)
      : n_planes(static_cast<std::size_t>(std::bit_width(2 * static_cast<unsigned>(voters)))),
        plane_words(shard.n_words()) {
    Parts<Byte> parts(frame);
    users = parts.template take<std::uint16_t>(shard.pieces.size());
    planes = parts.words(n_planes * plane_words);
    bytes = parts.end();
  }
  std::size_t n_planes, plane_words;
  std::span<typename Parts<Byte>::template Like<std::uint16_t>> users;  // ranks that use each piece
  Words<Byte> planes;
  std::size_t bytes = 0;
};

// Refused: bits in padding, invalid codes; a sum above 2 for each participating rank, participation
// counts inconsistent with this rank's tensors.
FrameKind ternary_frames();
FrameKind sum_frames(int voters);

}  // namespace pride
