// One addition of an all-reduce in bfloat16.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "pride/bf16.h"

namespace pride {

// sum = sum + row, added in float32 and rounded. REQUIRES: row.size() == sum.size(); `row` may be
// `sum`, but must not overlap it otherwise.
inline void add_to(std::span<const BFloat16> row, std::span<BFloat16> sum) noexcept {
  std::array<float, 1024> a, b;  // stays in the L1 cache
  for (std::size_t at = 0; at < sum.size(); at += a.size()) {
    const std::size_t n = std::min(a.size(), sum.size() - at);
    to_float(sum.subspan(at, n), std::span(a).first(n));
    to_float(row.subspan(at, n), std::span(b).first(n));
    for (std::size_t i = 0; i < n; ++i) a[i] += b[i];
    to_bf16(std::span(a).first(n), sum.subspan(at, n));
  }
}

}  // namespace pride
