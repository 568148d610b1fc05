// Bits in 64-bit words.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace pride {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }

}  // namespace pride
