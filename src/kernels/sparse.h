// Kernels of the sparse methods: accumulation with momentum correction, and selection of the
// largest entries. Same promises as kernels.h: the same bits on every instruction set, no
// allocation, no exception.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace pride::kernels {

// Momentum correction (Lin et al. 2017, arXiv:1712.01887, Algorithm 4), with gs = scale*g:
// u = momentum*u + gs;  v = v + u.   With nesterov: u = momentum*(u + gs);  v = (v + u) + gs.
// Reads 12 and writes 8 bytes per coordinate.
void correct_momentum(std::span<const float> g, float scale, float momentum, bool nesterov,
                      std::span<float> u, std::span<float> v) noexcept;

// x = x*decay - lr*g.  Reads 8 and writes 4 bytes per coordinate.
void sgd(std::span<const float> g, Step step, std::span<float> x) noexcept;

// The k entries of largest magnitude: all with a magnitude above `magnitude`, and the first n_equal
// with exactly that magnitude.
struct TopK {
  std::uint32_t magnitude = 0;  // bits of a float without its sign
  std::size_t n_equal = 0;
};

// Exactly min(k, nonzeros) entries; zeros are never selected. Inf and NaN count as large.
// Three passes over the magnitudes, 11 + 10 + 10 bits.
TopK top_k(std::span<const float> v, std::size_t k) noexcept;

// Bit i = 1 where v[i] is one of the entries. Returns their number, and subtracts the number of
// equal magnitude from which.n_equal: several spans can share one choice.
// REQUIRES: mask.size() == words_for(v.size()). Reads 4 and writes 1/8 byte per coordinate.
std::size_t select(std::span<const float> v, TopK& which, std::span<std::uint64_t> mask) noexcept;

// v[i] = 0 where bit i is 1.  REQUIRES: mask.size() == words_for(v.size()).
void clear_selected(std::span<const std::uint64_t> mask, std::span<float> v) noexcept;

}  // namespace pride::kernels
