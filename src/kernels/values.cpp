// The host's calls that move and set values, without SIMD of their own.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>

#include "kernels/value_calls.h"

namespace pride::kernels {

void Widen::run() const noexcept {
  g.for_blocks([&](std::size_t at, std::span<const float> part) {
    std::ranges::copy(part, out.subspan(at).begin());
  });
}

void Copy::run() const noexcept {
  if (!from.halved() && !to.halved()) {
    std::ranges::copy(from.span(), to.span().begin());
    return;
  }
  to.for_blocks([&](std::size_t at, std::span<float> part) {
    Memory::host().read(from.subspan(at, part.size()), part);
  });
}

void Fill::run() const noexcept { std::ranges::fill(x, value); }

void Poison::run() const noexcept {
  if (is_faulty(guard)) std::ranges::fill(x, std::numeric_limits<float>::quiet_NaN());
}

void Adopt::run() const noexcept {
  std::array<Float16, Values::kBlock> block;
  for (std::size_t at = 0; at < master.size(); at += block.size()) {
    const auto part = master.subspan(at, std::min(block.size(), master.size() - at));
    const auto given = values.subspan(at, part.size());
    const std::span rounded(block.data(), part.size());
    to_float16(part, rounded);
    if (std::ranges::equal(given, rounded)) continue;
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (given[i] != rounded[i]) to_float(given.subspan(i, 1), part.subspan(i, 1));
    }
  }
}

void Publish::run() const noexcept { to_float16(master, values); }

}  // namespace pride::kernels
