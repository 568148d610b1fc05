// The worker's half of Distributed Lion, which the vote and the average share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "pride/method.h"

namespace pride::methods {

// For every coordinate of the bucket: the sign of beta1*m + (1-beta1)*g into the frames wire.up,
// then m = beta2*m + (1-beta2)*g. Absent tensors keep their momentum and set their absent bit.
// wire.poison: the first tensor with a NaN or Inf. REQUIRES: frames sized by prepare_vote or
// _count.
void encode_lion_signs(const Bucket& bucket, ConstView grad, const StepContext& ctx,
                       FlatBuffer& momentum, Wire& wire);

}  // namespace pride::methods
