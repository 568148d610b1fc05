// Kernels of stochastic signs: floats to signs without bias, and counts of + to a sign without
// bias. Same promises as kernels.h: the same bits on every instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/philox_key.h"
#include "kernels/planes.h"

namespace pride::kernels {

// bit = 1 with probability (scale + u) / (2 scale), to within 2^-24: where t*scale < u, with
// t = (word >> 8) * 2^-23 - 1 in [-1, 1), the words of purpose 0x53530000 (kernels/philox_key.h).
// Always 1 for u = scale, never for u = -scale or a NaN; the hash bit where u == 0 (either zero).
// REQUIRES: bits.size() == words_for(u.size()); scale > 0. Reads 4 and writes 1/8 bytes per
// coordinate.
void stochastic_signs(std::span<const float> u, float scale, const PhiloxKey& key,
                      const SharedBits& zeros, std::span<std::uint64_t> bits) noexcept;

// positive = 1 with probability count / present, to within 2^-32: where the upper half of
// word * present, a product of 64 bits, is below the count, with the words of purpose 0x53560000.
// A tie, 2*count = present, takes the hash word's bit. All bits are 0 for present = 0.
// REQUIRES: no count above `present`; counts.n <= 31. Reads counts.n/8 and writes 1/8 bytes per
// coordinate.
void draw_planes(Planes counts, int present, const PhiloxKey& key, const SharedBits& ties,
                 std::span<std::uint64_t> positive) noexcept;

}  // namespace pride::kernels
