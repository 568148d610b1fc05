// The scalars of a step, rounded to float once, as all ranks of a run have them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride {

// Decoupled weight decay: a step x = x * factor - change has the factor `same` where the change is
// 0, or x and the change have the same sign. With cautious decay `opposite` is 1.
struct Decay {
  constexpr Decay(float always = 1) : same(always), opposite(always) {}
  constexpr Decay(float same_signs, float opposite_signs)
      : same(same_signs), opposite(opposite_signs) {}

  // Of 0 either factor is 0.
  constexpr float of(float x, float change) const {
    return change != 0 && (x < 0) != (change < 0) ? opposite : same;
  }

  float same, opposite;
};

// Scalars of one group at one step, rounded to float once. Every frame carries their digest.
struct StepScalars {
  float lr = 0;
  Decay decay = {};        // 1 - lr * weight_decay
  float weight_decay = 0;  // for rates other than lr
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float eps = 0;
  float adam_step = 0;        // lr / (1 - beta1^t), t = step + 1
  float adam_sqrt_bias2 = 1;  // sqrt(1 - beta2^t)
  // mu of Nesterov's momentum of matrices; all 0 if the method has none
  float momentum = 0, one_minus_momentum = 0, momentum2 = 0, one_minus_momentum2 = 0;  // mu, mu^2
};

}  // namespace pride
