// Turns: a step exchanges every n-th bit of each word of 64 coordinates. Frames hold only these
// bits. Layout: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "codecs/frame.h"
#include "pride/random_bits.h"

namespace pride {

// n turns, a power of two up to 64. In n steps from a multiple of n on, each coordinate has one.
class Turns {
 public:
  static constexpr int kMost = 64;

  // REQUIRES: n is a power of two up to 64.
  constexpr explicit Turns(int n) : n_(n) {
    for (int i = 0; i < kMost; i += n) first_ |= std::uint64_t{1} << i;
  }

  constexpr int n() const noexcept { return n_; }
  constexpr std::size_t bits() const noexcept { return static_cast<std::size_t>(kMost / n_); }

  // The bits of word `word` of the whole model that have their turn: the first, and the mask of
  // all. A hash of the word shifts them.
  constexpr int shift(std::uint64_t word, std::int64_t step) const noexcept {
    const auto turn = static_cast<std::uint64_t>(step) + mix64(0x5455524E5455524Eu, word);
    return static_cast<int>(turn % static_cast<std::uint64_t>(n_));
  }
  constexpr std::uint64_t mask(std::uint64_t word, std::int64_t step) const noexcept {
    return first_ << shift(word, step);
  }

  constexpr std::size_t packed_words(std::size_t n_words) const noexcept {
    return (n_words * bits() + 63) / 64;
  }

  // Packs the step's bits of a shard's words without gaps; unpacks them, with 0 elsewhere.
  // REQUIRES: packed has packed_words(shard.n_words()) words.
  void pack(const Shard& shard, std::span<const std::uint64_t> words, std::int64_t step,
            std::span<std::uint64_t> packed) const;
  void unpack(const Shard& shard, std::span<const std::uint64_t> packed, std::int64_t step,
              std::span<std::uint64_t> words) const;

 private:
  int n_;
  std::uint64_t first_ = 0;
};

// A frame of a shard, up or down.
template <typename Byte>
struct TurnView {
  TurnView(Byte* frame, const Shard& shard, const Turns& turns) {
    Parts<Byte> parts(frame);
    unused = parts.words(words_for(shard.pieces.size()));
    packed = parts.words(turns.packed_words(shard.n_words()));
    bytes = parts.end();
  }
  Words<Byte> unused, packed;
  std::size_t bytes = 0;  // header included
};

// Refused: bits of a piece that is unused, and after the last word.
FrameKind turn_frames(Codec codec, const Turns& turns);

}  // namespace pride
