// SPDX-License-Identifier: Apache-2.0
#include "codecs/ternary.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }

template <typename... Args>
[[noreturn]] void refuse(const std::string& where, int from, const Args&... what) {
  throw CommError(concat(where, ": the frame from rank ", from, " has ", what...));
}

// Bits of word w of a piece that are coordinates.
std::uint64_t used_bits(const Piece& piece, std::size_t w) {
  const std::size_t n = std::min<std::size_t>(64, piece.n() - 64 * w);
  return n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
}

// Coordinates of one word whose number, given by bit planes, is above the limit.
std::uint64_t above(std::span<const std::uint64_t> planes, std::size_t stride, std::size_t n_planes,
                    std::size_t word, std::uint64_t limit) {
  std::uint64_t more = 0, equal = ~std::uint64_t{0};
  for (std::size_t p = n_planes; p-- > 0;) {
    const std::uint64_t plane = planes[p * stride + word];
    if (((limit >> p) & 1) == 0) more |= equal & plane;
    equal &= ((limit >> p) & 1) == 0 ? ~plane : plane;
  }
  return more;
}

bool zero_padding(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

TernaryFrame::TernaryFrame(const Shard& shard)
    : absent_words(words_for(shard.pieces.size())),
      code_words(shard.n_words()),
      absent_at(kHeaderBytes),
      plus_at(absent_at + 8 * absent_words),
      not_minus_at(plus_at + 8 * code_words),
      bytes(not_minus_at + 8 * code_words) {}

SumFrame::SumFrame(const Shard& shard, int world)
    : n_planes(static_cast<std::size_t>(std::bit_width(2 * static_cast<unsigned>(world)))),
      plane_words(shard.n_words()),
      present_at(kHeaderBytes),
      planes_at(present_at + 8 * ((shard.pieces.size() + 3) / 4)),
      bytes(planes_at + 8 * n_planes * plane_words) {}

ScalesFrame::ScalesFrame(std::size_t n_tensors)
    : n(n_tensors), scales_at(kHeaderBytes), bytes(scales_at + 8 * ((n + 1) / 2)) {}

void check_ternary(std::span<const std::byte> frame, const Shard& shard, int from,
                   const std::string& where) {
  const TernaryFrame at(shard);
  if (frame.size() != at.bytes) refuse(where, from, frame.size(), " bytes, expected ", at.bytes);
  const auto absent = words_at(frame, at.absent_at, at.absent_words);
  for (std::size_t k = shard.pieces.size(); k < 64 * at.absent_words; ++k) {
    if (bit_at(absent, k)) refuse(where, from, "an absent bit set behind its pieces");
  }
  const auto plus = words_at(frame, at.plus_at, at.code_words);
  const auto not_minus = words_at(frame, at.not_minus_at, at.code_words);
  std::size_t word = 0;
  for (const Piece& piece : shard.pieces) {
    for (std::size_t w = 0; w < piece.n_words(); ++w, ++word) {
      if ((plus[word] & ~not_minus[word]) != 0) {
        refuse(where, from, "a code that is none of -1, 0, +1 in word ", word);
      }
      if ((not_minus[word] & ~used_bits(piece, w)) != 0) {
        refuse(where, from, "bits set behind a tensor, in word ", word);
      }
    }
  }
}

void check_sums(std::span<const std::byte> frame, const Shard& shard, int world, int from,
                const std::string& where) {
  const SumFrame at(shard, world);
  if (frame.size() != at.bytes) refuse(where, from, frame.size(), " bytes, expected ", at.bytes);
  const std::size_t n_pieces = shard.pieces.size();
  const auto present = values_at<std::uint16_t>(frame, at.present_at, n_pieces);
  const std::size_t padding_at = at.present_at + 2 * n_pieces;
  if (!zero_padding(frame.subspan(padding_at, at.planes_at - padding_at))) {
    refuse(where, from, "bits set behind its numbers of ranks");
  }
  const auto planes = words_at(frame, at.planes_at, at.n_planes * at.plane_words);
  std::size_t word = 0;
  for (std::size_t k = 0; k < n_pieces; ++k) {
    if (present[k] > world) refuse(where, from, present[k], " ranks present of ", world);
    for (std::size_t w = 0; w < shard.pieces[k].n_words(); ++w, ++word) {
      const std::uint64_t too_large =
          above(planes, at.plane_words, at.n_planes, word, 2u * present[k]);
      if (too_large != 0) {
        refuse(where, from, "a sum that ", present[k], " ranks cannot have, in word ", word);
      }
    }
  }
}

void check_scales(std::span<const std::byte> frame, std::size_t n_tensors, int from,
                  const std::string& where) {
  const ScalesFrame at(n_tensors);
  if (frame.size() != at.bytes) refuse(where, from, frame.size(), " bytes, expected ", at.bytes);
  const auto scales = values_at<float>(frame, at.scales_at, n_tensors);
  for (std::size_t t = 0; t < n_tensors; ++t) {
    if (!std::isfinite(scales[t]) || std::signbit(scales[t])) {
      refuse(where, from, scales[t], " as scale ", t);
    }
  }
  if (!zero_padding(frame.subspan(at.scales_at + 4 * n_tensors))) {
    refuse(where, from, "bits set behind its scales");
  }
}

}  // namespace pride
