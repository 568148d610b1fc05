// SPDX-License-Identifier: Apache-2.0
#include "codecs/signs.h"

#include <algorithm>

namespace pride {
namespace {

void check_bits(const ReceivedFrame& f, std::span<const std::uint64_t> unused,
                std::span<const std::uint64_t> signs) {
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& piece = f.shard.pieces[k];
    const auto bits = words_of(signs, piece);
    if (bits_beyond(bits, piece.n())) f.refuse("has signs beyond the end of tensor ", piece.tensor);
    if (bit_at(unused, k) && std::ranges::any_of(bits, [](std::uint64_t w) { return w != 0; })) {
      f.refuse("has signs of tensor ", piece.tensor, ", which it marks as unused");
    }
  }
}

}  // namespace

FrameKind sign_frames(Codec codec) {
  return {.codec = codec,
          .name = codec == Codec::kSign ? "sign" : "all signs",
          .bytes = [](const Shard& s) { return SignView<std::byte>(nullptr, s).bytes; },
          .check =
              [](const ReceivedFrame& f) {
                const SignView view(f.frame.head.data(), f.shard);
                check_bits(f, view.unused, view.signs);
              }};
}

FrameKind vote_frames(bool ternary) {
  return {.codec = Codec::kVote,
          .name = "vote",
          .bytes = [=](const Shard& s) { return VoteView<std::byte>(nullptr, s, ternary).bytes; },
          .check =
              [=](const ReceivedFrame& f) {
                const VoteView view(f.frame.head.data(), f.shard, ternary);
                check_bits(f, view.unused, view.positive);
              }};
}

}  // namespace pride
