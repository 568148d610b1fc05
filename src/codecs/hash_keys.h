// The hash words that decide zeros and ties. They are part of the wire format: every implementation
// must draw the same bits (docs/wire_format.md, "Zeros and ties").
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "pride/random_bits.h"

namespace pride {

// The keys of exchanges 2 pair and 2 pair + 1. The second exchange uses the opposite bits of the
// first, so that the steps of a coordinate that is zero in both cancel.
constexpr std::uint64_t tie_key(std::uint64_t seed, std::uint64_t pair) {
  return mix64(seed ^ 0x5449455F5449455Fu, pair);
}
constexpr std::uint64_t zero_key(std::uint64_t seed, std::uint64_t pair) {
  return mix64(seed ^ 0x5A45524F5A45524Fu, pair);
}

// Words of the zeros of a rank in an exchange, from coordinate `first` of the whole model on
// (Piece::in_whole). Odd ranks have the opposite bits of even ones, so that zeros of several ranks
// cancel.
constexpr kernels::HashWords zero_words(std::uint64_t seed, std::int64_t exchange, int rank,
                                        std::uint64_t first) {
  const auto t = static_cast<std::uint64_t>(exchange);
  const bool odd = (t + static_cast<std::uint64_t>(rank)) % 2 != 0;
  return {zero_key(seed, t / 2), first / 64, odd ? ~std::uint64_t{0} : 0, first % 64};
}

// Words of ties: the same on every rank.
constexpr kernels::HashWords tie_words(std::uint64_t seed, std::int64_t exchange,
                                       std::uint64_t first) {
  const auto t = static_cast<std::uint64_t>(exchange);
  return {tie_key(seed, t / 2), first / 64, t % 2 != 0 ? ~std::uint64_t{0} : 0, first % 64};
}

}  // namespace pride
