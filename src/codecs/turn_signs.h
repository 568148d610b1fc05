// Turns: of each word of 64 coordinates a step exchanges every n-th bit. Frames of these bits
// alone. Layout: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "codecs/frame.h"
#include "pride/random_bits.h"

namespace pride {

// n turns: 1, 2, 4 ... 64. In n steps that begin at a multiple of n each coordinate has one.
class Turns {
 public:
  static constexpr int kMost = 64;

  // REQUIRES: n is one of them.
  constexpr explicit Turns(int n) : n_(n) {
    for (int i = 0; i < kMost; i += n) first_ |= std::uint64_t{1} << i;
  }

  constexpr int n() const noexcept { return n_; }
  constexpr std::size_t bits() const noexcept { return static_cast<std::size_t>(kMost / n_); }

  // The first bit that has its turn in word `word` of the whole model, which a hash shifts, and all
  // of them.
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

  // The bits of a step, of a shard's words, one after the other; and back, with 0 elsewhere.
  // REQUIRES: packed has packed_words(shard.n_words()) words.
  void pack(const Shard& shard, std::span<const std::uint64_t> words, std::int64_t step,
            std::span<std::uint64_t> packed) const;
  void unpack(const Shard& shard, std::span<const std::uint64_t> packed, std::int64_t step,
              std::span<std::uint64_t> words) const;

 private:
  int n_;
  std::uint64_t first_ = 0;
};

// Of a shard, up and down.
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
