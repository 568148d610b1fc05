// SPDX-License-Identifier: Apache-2.0
#include "train/mix_up.h"

#include <ATen/ATen.h>

#include <cmath>

#include "train/gamma.h"

namespace pride::train {

void mix_up(double alpha, PhiloxStream bits, Batch& batch) {
  const double a = log_gamma_variate(alpha, bits), b = log_gamma_variate(alpha, bits);
  batch.share = 1 / (1 + std::exp(b - a));
  batch.other = batch.target.flip({0});
  batch.input = batch.input * batch.share + batch.input.flip({0}) * (1 - batch.share);
}

}  // namespace pride::train
