// SPDX-License-Identifier: Apache-2.0
#include "codecs/ternary.h"

namespace pride {
namespace {

// Coordinates of one word whose number in bit planes is above the limit.
std::uint64_t above(const SumView<const std::byte>& view, std::size_t word, std::uint64_t limit) {
  std::uint64_t more = 0, equal = ~std::uint64_t{0};
  for (std::size_t p = view.n_planes; p-- > 0;) {
    const std::uint64_t plane = view.planes[p * view.plane_words + word];
    if (((limit >> p) & 1) == 0) more |= equal & plane;
    equal &= ((limit >> p) & 1) == 0 ? ~plane : plane;
  }
  return more;
}

}  // namespace

FrameKind ternary_frames() {
  return {.codec = Codec::kTernary,
          .name = "ternary",
          .bytes = [](const Shard& s) { return TernaryView<std::byte>(nullptr, s).bytes; },
          .check =
              [](const ReceivedFrame& f) {
                const TernaryView view(f.frame.head.data(), f.shard);
                for (const Piece& piece : f.shard.pieces) {
                  const auto plus = words_of(view.plus, piece);
                  const auto not_minus = words_of(view.not_minus, piece);
                  for (std::size_t w = 0; w < plus.size(); ++w) {
                    if ((plus[w] & ~not_minus[w]) == 0) continue;
                    f.refuse("has a code that is none of -1, 0, +1 in word ", piece.first_word + w);
                  }
                  if (bits_beyond(not_minus, piece.n())) {
                    f.refuse("has bits set beyond the end of tensor ", piece.tensor);
                  }
                }
              }};
}

FrameKind sum_frames(int voters) {
  return {.codec = Codec::kSum,
          .name = "sum",
          .unused_bits = false,
          .bytes = [=](const Shard& s) { return SumView<std::byte>(nullptr, s, voters).bytes; },
          .check =
              [=](const ReceivedFrame& f) {
                const SumView view(f.frame.head.data(), f.shard, voters);
                check_users(f, view.users, voters);
                for (std::size_t k = 0; k < view.users.size(); ++k) {
                  const Piece& piece = f.shard.pieces[k];
                  for (std::size_t w = piece.first_word; w < piece.first_word + piece.n_words();
                       ++w) {
                    if (above(view, w, 2u * view.users[k]) == 0) continue;
                    f.refuse("has a sum that ", view.users[k], " ranks cannot have, in word ", w);
                  }
                }
              }};
}

}  // namespace pride
