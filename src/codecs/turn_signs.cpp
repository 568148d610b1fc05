// SPDX-License-Identifier: Apache-2.0
#include "codecs/turn_signs.h"

#include <algorithm>

namespace pride {

void Turns::pack(std::span<const std::uint64_t> words, std::uint64_t first_word, std::int64_t step,
                 std::span<std::uint64_t> packed) const {
  std::ranges::fill(packed, std::uint64_t{0});
  std::size_t at = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint64_t word = words[i] >> shift(first_word + i, step);
    for (int bit = 0; bit < kMost; bit += n_, ++at) {
      packed[at / 64] |= ((word >> bit) & 1) << (at % 64);
    }
  }
}

void Turns::unpack(std::span<const std::uint64_t> packed, std::uint64_t first_word,
                   std::int64_t step, std::span<std::uint64_t> words) const {
  std::size_t at = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = 0;
    for (int bit = 0; bit < kMost; bit += n_, ++at) {
      word |= ((packed[at / 64] >> (at % 64)) & 1) << bit;
    }
    words[i] = word << shift(first_word + i, step);
  }
}

namespace {

void check_bits(const ReceivedFrame& f, const Turns& turns) {
  const TurnView view(f.frame.head.data(), f.shard, turns);
  if (bits_beyond(view.packed, f.shard.n_words() * turns.bits())) {
    f.refuse("has bits after its last coordinate");
  }
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& piece = f.shard.pieces[k];
    if (!bit_at(view.unused, k)) continue;
    const std::size_t end = (piece.first_word + piece.n_words()) * turns.bits();
    for (std::size_t i = piece.first_word * turns.bits(); i < end; ++i) {
      if (!bit_at(view.packed, i)) continue;
      f.refuse("has signs of tensor ", piece.tensor, ", which it marks as unused");
    }
  }
}

}  // namespace

FrameKind turn_frames(Codec codec, const Turns& turns) {
  return {.codec = codec,
          .name = codec == Codec::kTurnSigns ? "turn signs" : "turn vote",
          .bytes = [turns](const Shard& s) { return TurnView<std::byte>(nullptr, s, turns).bytes; },
          .check = [turns](const ReceivedFrame& f) { check_bits(f, turns); }};
}

}  // namespace pride
