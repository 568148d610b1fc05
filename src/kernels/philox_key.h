// Key of the random words of a kernel's coordinates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pride::kernels {

// The word of flat coordinate c is word c % 4 of philox4x32({low half of c/4, high half of c/4, low
// half of step, rank ^ the kernel's purpose}, seed), the seed's low half first
// (pride/random_bits.h).
struct PhiloxKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  int rank = 0;
  std::uint64_t first_coord = 0;  // flat coordinate of the span's first element
};

}  // namespace pride::kernels
