// Integer powers by IEEE-rounded operations only: ranks compare the bits, and libms may differ.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pride {

// base^n.  REQUIRES: n >= 0.
constexpr double power(double base, std::int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, base *= base) {
    if (n % 2 == 1) result *= base;
  }
  return result;
}

}  // namespace pride
