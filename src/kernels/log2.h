// Logarithms for scales without libm, from operations that IEEE 754 rounds equally everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace pride::kernels {

// log2(x) with an error of at most 2^-51 max(1, |log2(x)|), and 2^y with a relative error of at
// most 2^-51; exact for powers of two and for whole y.  REQUIRES: x normal and positive; |y| <=
// 1000.
double log2_of(double x) noexcept;
double exp2_of(double y) noexcept;

// Sum of log2(|x| + 1e-12), with |x| + 1e-12 in double. It adds the exponents as integers and the
// log2 of the product of the mantissas, over sixteen partial products in the order of sum_squares.
// The same bits on every instruction set. Finite and meaningless if any x is not finite.
// Reads 4 bytes per coordinate.
double sum_log2(std::span<const float> x) noexcept;

}  // namespace pride::kernels
