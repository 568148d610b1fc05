// Packed numbers as their definition has them: V by Horner's rule, the fraction by a division, and
// digits by dividing V again, never by multiplying the fraction.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/radix.h"

namespace pride::reference {

using kernels::Radix;

inline std::uint64_t modulus(Radix radix) {
  std::uint64_t m = 1;
  for (std::size_t j = 0; j < radix.n_digits; ++j) m *= radix.base;
  return m;
}

// numbers[i] is that of coordinate i; a whole number of groups.
inline std::vector<std::uint32_t> pack_digits(const std::vector<std::uint32_t>& numbers,
                                              Radix radix) {
  const std::size_t per_group = 64 * radix.n_digits;
  std::vector<std::uint32_t> packed;
  for (std::size_t group = 0; group < numbers.size(); group += per_group) {
    for (std::size_t c = 0; c < 64; ++c) {
      std::uint64_t v = 0;
      for (std::size_t j = 0; j < radix.n_digits; ++j) {
        v = v * radix.base + numbers[group + 64 * j + c];
      }
      const std::uint64_t m = modulus(radix), scaled = v << 32;
      packed.push_back(static_cast<std::uint32_t>(scaled / m + (scaled % m != 0 ? 1 : 0)));
    }
  }
  return packed;
}

inline std::vector<std::uint32_t> unpack_digits(const std::vector<std::uint32_t>& packed,
                                                Radix radix) {
  std::vector<std::uint32_t> numbers(packed.size() * radix.n_digits);
  for (std::size_t k = 0; k < packed.size(); ++k) {
    std::uint64_t v = (packed[k] * modulus(radix)) >> 32;  // floor(f * M / 2^32) = V
    for (std::size_t j = radix.n_digits; j-- > 0; v /= radix.base) {
      numbers[64 * (k / 64 * radix.n_digits + j) + k % 64] =
          static_cast<std::uint32_t>(v % radix.base);
    }
  }
  return numbers;
}

}  // namespace pride::reference
