// SPDX-License-Identifier: Apache-2.0
// Source    Marsaglia and Tsang 2000.
#include "train/gamma.h"

#include <cmath>
#include <numbers>

namespace pride::train {
namespace {

double open_unit(PhiloxStream& bits) {
  return (static_cast<double>(bits.next_u64() >> 12) + 0.5) * 0x1p-52;
}

double normal(PhiloxStream& bits) {
  const double radius = std::sqrt(-2 * std::log(open_unit(bits)));
  return radius * std::cos(2 * std::numbers::pi * open_unit(bits));
}

}  // namespace

double log_gamma_variate(double shape, PhiloxStream& bits) {
  // Gamma(a) is Gamma(a + 1) times U^(1/a)
  if (shape < 1) return log_gamma_variate(shape + 1, bits) + std::log(open_unit(bits)) / shape;
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(bits);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(open_unit(bits)) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return std::log(d * v);
    }
  }
}

}  // namespace pride::train
