// Checks of payloads.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/payload_check.h"

#include <algorithm>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }

template <typename... What>
[[noreturn]] void refuse(const ReceivedFrame& f, const What&... what) {
  throw CommError(concat(f.where, ": the frame from rank ", f.from, " ", what...));
}

// Bits of the last of these words that lie beyond the first n bits.
bool has_bits_beyond(std::span<const std::uint64_t> words, std::size_t n) {
  return n % 64 != 0 && words.back() >> (n % 64) != 0;
}

bool any(std::span<const std::uint64_t> words) {
  return std::any_of(words.begin(), words.end(), [](std::uint64_t w) { return w != 0; });
}

std::span<const std::uint64_t> absent_bits(const ReceivedFrame& f) {
  return words_at(f.frame, kHeaderBytes, words_for(f.shard.pieces.size()));
}

// Signs of the pieces, one after the other.
void check_pieces(const ReceivedFrame& f, std::size_t signs_at) {
  const auto absent = absent_bits(f);
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& piece = f.shard.pieces[k];
    const auto signs = words_at(f.frame, signs_at, piece.n_words());
    if (has_bits_beyond(signs, piece.n())) {
      refuse(f, "has signs beyond the end of tensor ", piece.tensor);
    }
    if (bit_at(absent, k) && any(signs)) {
      refuse(f, "has signs of tensor ", piece.tensor, ", which it says is absent");
    }
    signs_at += 8 * signs.size();
  }
}

}  // namespace

void check_absent_bits(const ReceivedFrame& f) {
  const auto absent = absent_bits(f);
  const std::size_t n = f.shard.pieces.size();
  if (!absent.empty() && has_bits_beyond(absent, n)) {
    refuse(f, "has absent bits beyond its ", n, " pieces");
  }
}

void check_nobody_bits(const ReceivedFrame& f, std::span<const char> absent_here) {
  check_absent_bits(f);
  const auto nobody = absent_bits(f);
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const std::size_t tensor = f.shard.pieces[k].tensor;
    if (bit_at(nobody, k) && absent_here[tensor] == 0) {
      refuse(f, "says that no rank has tensor ", tensor, ", which this rank has");
    }
  }
}

void check_signs(const ReceivedFrame& f) {
  const SignFrame at(f.shard);
  check_absent_bits(f);
  check_pieces(f, at.signs_at);
}

void check_vote(const ReceivedFrame& f, bool ternary, std::span<const char> absent_here) {
  const VoteFrame at(f.shard, ternary);
  check_nobody_bits(f, absent_here);
  check_pieces(f, at.positive_at);
}

void check_present(const ReceivedFrame& f, int world, std::span<const char> absent_here) {
  const auto by_piece = values_at<std::uint16_t>(f.frame, kHeaderBytes, f.shard.pieces.size());
  for (std::size_t k = 0; k < by_piece.size(); ++k) {
    const std::size_t tensor = f.shard.pieces[k].tensor;
    const bool here = absent_here[tensor] == 0;
    if (here ? by_piece[k] > 0 : by_piece[k] < world) continue;
    refuse(f, "says that ", by_piece[k], " of ", world, " ranks have tensor ", tensor,
           ", which this rank has", here ? "" : " not");
  }
}

}  // namespace pride
