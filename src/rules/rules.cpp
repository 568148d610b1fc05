// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.h"
#include "rules/rule.h"

namespace pride::rules {

void AdamW::step(std::size_t begin, std::span<const float> g, const StepScalars& s,
                 std::span<float> x) {
  const kernels::AdamScalars a{s.beta1,     s.one_minus_beta1, s.beta2, s.one_minus_beta2,
                               s.adam_step, s.adam_sqrt_bias2, s.eps,   s.decay};
  kernels::adamw(g, a, m_.span().subspan(begin, g.size()), v_.span().subspan(begin, g.size()), x);
}

void Lion::step(std::size_t begin, std::span<const float> g, const StepScalars& s,
                std::span<float> x) {
  const kernels::Blend blend{s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
  kernels::dense_lion(g, blend, {s.decay, s.lr}, m_.span().subspan(begin, g.size()), x);
}

void SgdMomentum::step(std::size_t begin, std::span<const float> g, const StepScalars& s,
                       std::span<float> x) {
  kernels::sgd_momentum(g, s.beta1, nesterov_, {s.decay, s.lr}, m_.span().subspan(begin, g.size()),
                        x);
}

}  // namespace pride::rules
