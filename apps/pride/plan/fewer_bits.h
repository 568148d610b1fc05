// Methods of less than a bit per parameter and step, where votes of one bit do not hide behind
// backward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plan/outcome.h"

namespace pride::app {

// The least `turns` of turn-muon and `h` of local-muon whose exchange adds at most 3 % to a step;
// 0: none up to 64.
struct FewerBits {
  bool needed = false;  // the compressed method of the plan with the fewest bytes adds more
  std::string method;   // that method
  int turns = 0, h = 0;
};
// By the bytes of those methods and the arithmetic of that method. Not needed, too: the plan has no
// compressed method that exchanges every step, or the build has no BLAS.
FewerBits fewer_bits(const Plan& plan);

// As sentences; empty: not needed.
std::string advice_on(const Plan& plan);

}  // namespace pride::app
