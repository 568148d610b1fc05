// Scaled signs: one bit a coordinate and one float a block. The same frame goes up and down.
// Layout and example: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/frame.h"
#include "kernels/scaled_signs.h"

namespace pride {

// A scale covers the part of one tensor in one aligned range of this many flat coordinates. Shards
// are cut at multiples of it, so that the blocks do not depend on buckets or ranks.
using kernels::kScaleBlock;

// One block of a shard: flat coordinates [begin, end), padding left out; the k-th scale of the
// shard's frames belongs to block k.
struct ScaleBlock {
  std::size_t begin = 0, end = 0;
  std::size_t piece = 0;       // of the shard
  std::size_t first_word = 0;  // of the shard's sign words

  std::size_t n() const noexcept { return end - begin; }
  std::size_t n_words() const noexcept { return (n() + 63) / 64; }
};

// Ascending. REQUIRES: the shard begins at a multiple of kScaleBlock or at a tensor, or is empty.
std::vector<ScaleBlock> scale_blocks(const Shard& shard);
std::size_t count_scale_blocks(const Shard& shard);

template <typename Byte>
struct ScaledSignView {
  ScaledSignView(Byte* frame, const Shard& shard) {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(shard.pieces.size()));
    scales = parts.template take<float>(count_scale_blocks(shard));
    signs = parts.words(shard.n_words());
    bytes = parts.end();
  }
  auto signs_of(const ScaleBlock& b) const { return signs.subspan(b.first_word, b.n_words()); }

  Words<Byte> unused;
  std::span<typename Parts<Byte>::template Like<float>> scales;
  Words<Byte> signs;
  std::size_t bytes = 0;
};

// Refused: scales that are negative or not finite, bits outside the blocks.
FrameKind scaled_sign_frames();

}  // namespace pride
