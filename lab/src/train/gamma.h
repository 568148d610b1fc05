// Gamma variates, from which Dirichlet and beta distributions are made.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/random_bits.h"

namespace pride::train {

// The logarithm of a Gamma(shape, 1) variate, because for small shapes the variate would underflow.
// REQUIRES: shape > 0.
double log_gamma_variate(double shape, PhiloxStream& bits);

}  // namespace pride::train
