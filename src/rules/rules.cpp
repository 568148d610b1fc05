// SPDX-License-Identifier: Apache-2.0
#include "rules/rule.h"

namespace pride::rules {

void AdamW::step(std::size_t begin, const Values& g, const StepScalars& s, Floats x, Guard guard) {
  const kernels::AdamScalars a{s.beta1,     s.one_minus_beta1, s.beta2, s.one_minus_beta2,
                               s.adam_step, s.adam_sqrt_bias2, s.eps,   s.decay};
  space_.run(kernels::AdamW{g, a, m_.span().subspan(begin, x.size()),
                            v_.span().subspan(begin, x.size()), x, guard});
}

void Lion::step(std::size_t begin, const Values& g, const StepScalars& s, Floats x, Guard guard) {
  const kernels::Blend blend{s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
  space_.run(kernels::DenseLion{g, blend, {s.decay, s.lr}, m_.of(begin, x.size()), x, guard});
}

void SgdMomentum::step(std::size_t begin, const Values& g, const StepScalars& s, Floats x,
                       Guard guard) {
  space_.run(kernels::SgdMomentum{
      g, s.beta1, nesterov_, {s.decay, s.lr}, m_.span().subspan(begin, x.size()), x, guard});
}

}  // namespace pride::rules
