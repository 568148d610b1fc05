// Signs (up) and the majority of signs or levels (down): one bit a coordinate. Layout and example:
// docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/frame.h"

namespace pride {

// Signs of a shard; or with Codec::kAllSigns of a whole bucket, from every rank to every other.
template <typename Byte>
struct SignView {
  SignView(Byte* frame, const Shard& shard) {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(shard.pieces.size()));
    signs = parts.words(shard.n_words());
    bytes = parts.end();
  }
  Words<Byte> unused, signs;
  std::size_t bytes = 0;  // header included
};

// A vote. `nonzero` is empty unless ties are zeros; then it is 0 where the vote is tied.
template <typename Byte>
struct VoteView {
  VoteView(Byte* frame, const Shard& shard, bool ternary) {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(shard.pieces.size()));
    positive = parts.words(shard.n_words());
    if (ternary) nonzero = parts.words(shard.n_words());
    bytes = parts.end();
  }
  Words<Byte> unused, positive, nonzero;
  std::size_t bytes = 0;
};

// Refused: bits outside the pieces, signs of a piece that is unused.
FrameKind sign_frames(Codec codec = Codec::kSign);
FrameKind vote_frames(bool ternary);

}  // namespace pride
