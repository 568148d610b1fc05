// SPDX-License-Identifier: Apache-2.0
#include "codecs/counts.h"

#include <algorithm>
#include <bit>

namespace pride {
namespace {

std::size_t planes_for(int votes) {
  return static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(votes)));
}

// No digits if planes take as few bits, for instance if votes + 1 is a power of two.
kernels::Radix radix_for(int votes, CountForm form) {
  const kernels::Radix radix = kernels::radix_of(static_cast<std::uint32_t>(votes) + 1);
  const bool fewer_bits = 32 < radix.n_digits * planes_for(votes);
  return form == CountForm::kPacked && fewer_bits ? radix : kernels::Radix{};
}

// True if some count of words [first, first + n) exceeds `limit`.
bool any_above(const CountView<const std::byte>& view, std::size_t first, std::size_t n,
               unsigned limit) {
  if (limit + 1 >= 1u << view.n_planes) return false;
  std::uint64_t found = 0;
  for (std::size_t k = first; k < first + n; ++k) {
    std::uint64_t above = 0, equal = ~std::uint64_t{0};
    for (std::size_t p = view.n_planes; p-- > 0;) {
      const std::uint64_t bits = view.planes[p * view.plane_words + k];
      const bool limit_bit = (limit >> p) & 1;
      above |= limit_bit ? 0 : equal & bits;
      equal &= limit_bit ? bits : ~bits;
    }
    found |= above;
  }
  return found != 0;
}

// True if some count of the piece exceeds the number of its users.
bool counts_too_many(const CountView<const std::byte>& view, const Piece& piece, int users,
                     int votes) {
  const std::size_t end = piece.first_word + piece.n_words();
  const std::size_t packed_end = std::min(end, view.packed_words);
  // no packed number exceeds the number of votes
  if (piece.first_word < packed_end && users < votes) {
    const std::uint32_t most = kernels::max_digit(view.packed, view.radix, piece.first_word,
                                                  packed_end - piece.first_word);
    if (most > static_cast<std::uint32_t>(users)) return true;
  }
  const std::size_t first = std::max(piece.first_word, view.packed_words);
  return first < end &&
         any_above(view, first - view.packed_words, end - first, static_cast<unsigned>(users));
}

}  // namespace

CountShape::CountShape(std::size_t n_words, int votes, CountForm form)
    : radix(radix_for(votes, form)),
      n_groups(radix.n_digits == 0 ? 0 : n_words / radix.n_digits),
      packed_words(n_groups * radix.n_digits),
      n_planes(planes_for(votes)),
      plane_words(n_words - packed_words) {}

double count_bits(int votes, CountForm form) {
  const kernels::Radix radix = radix_for(votes, form);
  return radix.n_digits == 0 ? static_cast<double>(planes_for(votes))
                             : 32.0 / static_cast<double>(radix.n_digits);
}

FrameKind count_frames(int votes, CountForm form) {
  const bool packed = radix_for(votes, form).n_digits > 0;
  return {
      .codec = packed ? Codec::kPackedCount : Codec::kCount,
      .name = packed ? "packed count" : "count",
      .unused_bits = false,
      .bytes = [=](const Shard& s) { return CountView<std::byte>(nullptr, s, votes, form).bytes; },
      .check =
          [=](const ReceivedFrame& f) {
            const CountView view(f.frame.head.data(), f.shard, votes, form);
            check_users(f, view.users, f.most_votes > 0 ? f.most_votes : votes);
            for (std::size_t k = 0; k < view.users.size(); ++k) {
              const Piece& piece = f.shard.pieces[k];
              if (!counts_too_many(view, piece, view.users[k], votes)) continue;
              f.refuse("counts more than the ", view.users[k], " ranks that use tensor ",
                       piece.tensor);
            }
          }};
}

}  // namespace pride
