// Methods that send less than a bit per parameter and step, for networks on which one-bit votes do
// not hide behind backward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "program/plan/outcome.h"

namespace pride::inline program {

// The least `turns` of turn-muon, and the least `h` of local-muon and local-ef, whose exchange adds
// at most 3 % to a step; 0: none up to 64.
struct FewerBits {
  bool needed = false;  // the plan's compressed method with the fewest bytes adds more
  std::string method;   // that method
  int turns = 0, h = 0;
};
// From the bytes of turn-muon, those of `method` in every h-th step, and the arithmetic of
// `method`. `needed` is also false if the plan has no compressed method that exchanges every step,
// or the build has no BLAS.
FewerBits fewer_bits(const Plan& plan);

// The result as sentences; empty: not needed.
std::string advice_on(const Plan& plan);

}  // namespace pride::inline program
