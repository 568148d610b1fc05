// SPDX-License-Identifier: Apache-2.0
#include "codecs/scaled_signs.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace pride {

std::size_t count_scale_blocks(const Shard& shard) {
  std::size_t blocks = 0;
  for (const Piece& p : shard.pieces) {
    blocks += (p.end + kScaleBlock - 1) / kScaleBlock - p.begin / kScaleBlock;
  }
  return blocks;
}

std::vector<ScaleBlock> scale_blocks(const Shard& shard) {
  assert(shard.size() == 0 || shard.begin % kScaleBlock == 0 ||
         shard.begin == shard.pieces.front().begin);
  std::vector<ScaleBlock> blocks;
  blocks.reserve(count_scale_blocks(shard));
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    for (std::size_t begin = piece.begin; begin < piece.end;) {
      const std::size_t next = (begin / kScaleBlock + 1) * kScaleBlock;
      blocks.push_back({begin, std::min(next, piece.end), k, (begin - shard.begin) / 64});
      begin = next;
    }
  }
  return blocks;
}

FrameKind scaled_sign_frames() {
  return {.codec = Codec::kScaledSign,
          .name = "scaled sign",
          .bytes = [](const Shard& s) { return ScaledSignView<std::byte>(nullptr, s).bytes; },
          .check =
              [](const ReceivedFrame& f) {
                const ScaledSignView view(f.frame.head.data(), f.shard);
                for (std::size_t k = 0; k < view.scales.size(); ++k) {
                  const float scale = view.scales[k];
                  if (std::isfinite(scale) && !std::signbit(scale)) continue;
                  f.refuse("has scale ", scale, " for block ", k,
                           ", must be finite and not negative");
                }
                if (!padding_is_zero(std::as_bytes(view.scales))) {
                  f.refuse("has nonzero padding after the scales of its ", view.scales.size(),
                           " blocks");
                }
                for (const Piece& piece : f.shard.pieces) {
                  if (!bits_beyond(words_of(view.signs, piece), piece.n())) continue;
                  f.refuse("has signs beyond the end of tensor ", piece.tensor);
                }
              }};
}

}  // namespace pride
