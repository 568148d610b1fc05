// SPDX-License-Identifier: Apache-2.0
#include "codecs/turn_signs.h"

#include <algorithm>

namespace pride {

namespace {

// Calls f(index of the word in the shard, its number in the whole model) for each word.
template <typename F>
void for_words(const Shard& shard, F f) {
  for (const Piece& piece : shard.pieces) {
    for (std::size_t i = 0; i < piece.n_words(); ++i) {
      f(piece.first_word + i, piece.in_whole(piece.begin) / 64 + i);
    }
  }
}

}  // namespace

void Turns::pack(const Shard& shard, std::span<const std::uint64_t> words, std::int64_t step,
                 std::span<std::uint64_t> packed) const {
  std::ranges::fill(packed, std::uint64_t{0});
  for_words(shard, [&](std::size_t i, std::uint64_t number) {
    const std::uint64_t word = words[i] >> shift(number, step);
    std::size_t at = i * bits();
    for (int bit = 0; bit < kMost; bit += n_, ++at) {
      packed[at / 64] |= ((word >> bit) & 1) << (at % 64);
    }
  });
}

void Turns::unpack(const Shard& shard, std::span<const std::uint64_t> packed, std::int64_t step,
                   std::span<std::uint64_t> words) const {
  for_words(shard, [&](std::size_t i, std::uint64_t number) {
    std::uint64_t word = 0;
    std::size_t at = i * bits();
    for (int bit = 0; bit < kMost; bit += n_, ++at) {
      word |= ((packed[at / 64] >> (at % 64)) & 1) << bit;
    }
    words[i] = word << shift(number, step);
  });
}

namespace {

void check_bits(const ReceivedFrame& f, const Turns& turns) {
  const TurnView view(f.frame.head.data(), f.shard, turns);
  if (bits_beyond(view.packed, f.shard.n_words() * turns.bits())) {
    f.refuse("has bits set after its last coordinate");
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
