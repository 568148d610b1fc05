// Frames of counts: where their parts lie, and what a receiver refuses.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/counts.h"

#include <algorithm>
#include <bit>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t padded_to_8(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

std::size_t planes_for(int world) {
  return static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(world)));
}

// No digits where planes take as few bits, as for every N + 1 that is a power of two.
kernels::Radix radix_for(int world, CountForm form) {
  const kernels::Radix radix = kernels::radix_of(static_cast<std::uint32_t>(world) + 1);
  const bool fewer_bits = 32 < radix.n_digits * planes_for(world);
  return form == CountForm::kPacked && fewer_bits ? radix : kernels::Radix{};
}

// True if some count of these words exceeds `limit`. Plane p of word k is planes[p * stride + k].
bool any_above(std::span<const std::uint64_t> planes, std::size_t n_planes, std::size_t stride,
               std::size_t n_words, unsigned limit) {
  if (limit + 1 >= 1u << n_planes) return false;
  std::uint64_t found = 0;
  for (std::size_t k = 0; k < n_words; ++k) {
    std::uint64_t above = 0, equal = ~std::uint64_t{0};
    for (std::size_t p = n_planes; p-- > 0;) {
      const std::uint64_t bits = planes[p * stride + k];
      const bool limit_bit = (limit >> p) & 1;
      above |= limit_bit ? 0 : equal & bits;
      equal &= limit_bit ? bits : ~bits;
    }
    found |= above;
  }
  return found != 0;
}

// True if some count of the range exceeds the number of present ranks.
bool counts_too_many(std::span<const std::byte> frame, const CountFrame& at, int world,
                     const CountRange& range) {
  const std::size_t end = range.first_word + range.n_words();
  const std::size_t packed_end = std::min(end, at.packed_words);
  // no packed number can be larger than N
  if (range.first_word < packed_end && range.present < world) {
    const auto packed = values_at<std::uint32_t>(frame, at.packed_at, 64 * at.n_groups);
    const std::uint32_t most =
        kernels::max_digit(packed, at.radix, range.first_word, packed_end - range.first_word);
    if (most > static_cast<std::uint32_t>(range.present)) return true;
  }
  const std::size_t first = std::max(range.first_word, at.packed_words);
  if (first >= end) return false;
  const auto planes = words_at(frame, at.planes_at, at.n_planes * at.plane_words);
  return any_above(planes.subspan(first - at.packed_words), at.n_planes, at.plane_words,
                   end - first, static_cast<unsigned>(range.present));
}

}  // namespace

double count_bits(int world, CountForm form) {
  const kernels::Radix radix = radix_for(world, form);
  return radix.n_digits == 0 ? static_cast<double>(planes_for(world))
                             : 32.0 / static_cast<double>(radix.n_digits);
}

Codec count_codec(int world, CountForm form) {
  return radix_for(world, form).n_digits == 0 ? Codec::kCount : Codec::kPackedCount;
}

CountFrame::CountFrame(const Shard& shard, int world, CountForm form)
    : radix(radix_for(world, form)),
      n_groups(radix.n_digits == 0 ? 0 : shard.n_words() / radix.n_digits),
      packed_words(n_groups * radix.n_digits),
      n_planes(planes_for(world)),
      plane_words(shard.n_words() - packed_words),
      present_at(kHeaderBytes),
      packed_at(present_at + padded_to_8(2 * shard.pieces.size())),
      planes_at(packed_at + 256 * n_groups),
      bytes(planes_at + 8 * n_planes * plane_words) {}

std::vector<CountRange> count_ranges(std::span<const std::byte> frame, const Shard& shard,
                                     const CountFrame& at) {
  const auto by_piece = values_at<std::uint16_t>(frame, at.present_at, shard.pieces.size());
  std::vector<CountRange> ranges;
  std::size_t word = 0;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    ranges.push_back({piece.begin, piece.end, k, word, by_piece[k]});
    word += piece.n_words();
  }
  return ranges;
}

void check_counts(const ReceivedFrame& f, int world, CountForm form) {
  const std::span<const std::byte> frame = f.frame;
  const Shard& shard = f.shard;
  const CountFrame at(shard, world, form);
  const auto must = [&](bool good, const auto&... what) {
    if (!good) throw CommError(concat(f.where, ": the frame from rank ", f.from, " ", what...));
  };
  must(frame.size() == at.bytes, "has ", frame.size(), " bytes, its shard takes ", at.bytes);

  const auto by_piece = values_at<std::uint16_t>(frame, at.present_at, shard.pieces.size());
  for (std::size_t k = 0; k < by_piece.size(); ++k) {
    must(by_piece[k] <= world, "says that ", by_piece[k], " of ", world, " ranks have tensor ",
         shard.pieces[k].tensor);
  }
  const std::size_t end = at.present_at + 2 * by_piece.size();
  const auto unused = values_at<std::uint16_t>(frame, end, (at.packed_at - end) / 2);
  must(std::ranges::all_of(unused, [](std::uint16_t value) { return value == 0; }),
       "has ranks present beyond its ", by_piece.size(), " pieces");

  for (const CountRange& range : count_ranges(frame, shard, at)) {
    must(!counts_too_many(frame, at, world, range), "counts more than the ", range.present,
         " ranks present in tensor ", shard.pieces[range.piece].tensor);
  }
}

}  // namespace pride
