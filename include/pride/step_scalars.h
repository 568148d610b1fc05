// The scalars of a step, rounded to float once, as all ranks of a run have them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride {

// Scalars of one group at one step, rounded to float once. Every frame carries their digest.
struct StepScalars {
  float lr = 0;
  float decay = 1;         // 1 - lr * weight_decay
  float weight_decay = 0;  // for rates other than lr
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float eps = 0;
  float adam_step = 0;        // lr / (1 - beta1^t), t = step + 1
  float adam_sqrt_bias2 = 1;  // sqrt(1 - beta2^t)
};

}  // namespace pride
