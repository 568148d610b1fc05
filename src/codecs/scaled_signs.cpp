// Blocks and frames of scaled signs.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/scaled_signs.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }
constexpr std::uint32_t kInfinity = 0x7F800000;  // above it: NaN and everything negative

std::size_t blocks_of(const Piece& piece) {
  return (piece.end + kScaleBlock - 1) / kScaleBlock - piece.begin / kScaleBlock;
}

std::size_t count_blocks(const Shard& shard) {
  std::size_t blocks = 0;
  for (const Piece& piece : shard.pieces) blocks += blocks_of(piece);
  return blocks;
}

// Bits of the word from bit `used` on.
constexpr std::uint64_t above(std::uint64_t word, std::size_t used) {
  return used % 64 == 0 ? 0 : word >> (used % 64);
}

}  // namespace

std::vector<ScaleBlock> scale_blocks(const Shard& shard) {
  assert(shard.size() == 0 || shard.begin % kScaleBlock == 0);
  std::vector<ScaleBlock> blocks;
  blocks.reserve(count_blocks(shard));
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

ScaledSignFrame::ScaledSignFrame(const Shard& shard)
    : absent_words(words_for(shard.pieces.size())),
      n_scales(count_blocks(shard)),
      sign_words(shard.n_words()),
      absent_at(kHeaderBytes),
      scales_at(absent_at + 8 * absent_words),
      signs_at(scales_at + 8 * ((n_scales + 1) / 2)),
      bytes(signs_at + 8 * sign_words) {}

std::span<float> scales_of(std::span<std::byte> frame, const ScaledSignFrame& at) {
  assert(frame.size() == at.bytes);
  return {reinterpret_cast<float*>(frame.data() + at.scales_at), at.n_scales};
}

std::span<const float> scales_of(std::span<const std::byte> frame, const ScaledSignFrame& at) {
  assert(frame.size() == at.bytes);
  return {reinterpret_cast<const float*>(frame.data() + at.scales_at), at.n_scales};
}

void clear_scaled_signs(std::span<std::byte> frame, const ScaledSignFrame& at) {
  const auto words = words_at(frame, at.absent_at, (at.signs_at - at.absent_at) / 8);
  std::fill(words.begin(), words.end(), 0);
}

void check_scaled_signs(const ReceivedFrame& f) {
  const std::span<const std::byte> frame = f.frame;
  const Shard& shard = f.shard;
  const ScaledSignFrame at(shard);
  const auto must = [&](bool good, const auto&... what) {
    if (!good) throw CommError(concat(f.where, ": the frame from rank ", f.from, " ", what...));
  };
  must(frame.size() == at.bytes, "has ", frame.size(), " bytes, its shard takes ", at.bytes);
  check_absent_bits(f);

  const auto scales = scales_of(frame, at);
  for (std::size_t k = 0; k < scales.size(); ++k) {
    must(std::bit_cast<std::uint32_t>(scales[k]) < kInfinity, "has scale ", scales[k],
         " for block ", k, ", must be finite and not negative");
  }
  const auto scale_words = words_at(frame, at.scales_at, (at.signs_at - at.scales_at) / 8);
  must(scales.size() % 2 == 0 || scale_words.back() >> 32 == 0, "has a scale beyond its ",
       scales.size(), " blocks");

  const auto signs = words_at(frame, at.signs_at, at.sign_words);
  std::size_t word = 0;
  for (const Piece& piece : shard.pieces) {
    word += piece.n_words();
    must(above(signs[word - 1], piece.n()) == 0, "has signs beyond the end of tensor ",
         piece.tensor);
  }
}

}  // namespace pride
