// Loops of the host's calls over blocks of values in any dtype.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/step.h"

namespace pride::kernels {

// Calls body(at, gradient, x) for blocks of both, or for all at once.
inline void for_both(const Values& g, Floats x, auto&& body) {
  constexpr std::size_t kBlock = Values::kBlock;
  alignas(64) std::array<float, kBlock> room;
  const auto of_block = [&](std::size_t at, std::span<float> part) {
    body(at, g.read(at, part.size(), room), part);
  };
  if (!x.halved() && g.direct()) return of_block(0, x.span());
  for (std::size_t at = 0; at < x.size(); at += kBlock) {
    x.subspan(at, std::min(kBlock, x.size() - at))
        .for_blocks([&](std::size_t, std::span<float> part) { of_block(at, part); });
  }
}

// Values [at, at + n), where null data count as zeros.
inline std::span<const float> or_zeros(const Values& g, std::size_t at, std::size_t n,
                                       std::span<float> room) {
  alignas(64) static constexpr std::array<float, Values::kBlock> kZeros{};
  return g.data == nullptr ? std::span(kZeros).first(n) : g.read(at, n, room);
}

}  // namespace pride::kernels
