// MixUp: a batch is added to itself in another order, in shares drawn for the batch.
// SPDX-License-Identifier: Apache-2.0
// Source    Zhang et al. 2018, arXiv:1710.09412; one share a batch and the reversed order as timm.
#pragma once

#include "pride/random_bits.h"
#include "pride/train/task.h"

namespace pride::train {

// Row i becomes share * row i + (1 - share) * row n - 1 - i, share drawn from Beta(alpha, alpha);
// `other` and `share` of the batch say so. REQUIRES: alpha > 0; images on the host.
void mix_up(double alpha, PhiloxStream bits, Batch& batch);

}  // namespace pride::train
