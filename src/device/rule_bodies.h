// Device kernels of the update rules for a given gradient. The rules of bodies.h apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef __CUDACC__
#include "device/lanes.h"
#endif

namespace pride::device {

// kernels::adamw
struct AdamW {
  Values g;
  float *m, *v;
  Halves x;
  u64 n;
  Betas betas;
  float step_size, sqrt_bias2, eps;
  Decay decay;
  const u32* guard;
};
PRIDE_BODY void adamw(const AdamW& j, u64 at) {
  if (is_faulty(j.guard)) return;
  Chunk<float> g, m, v, x;
  fetch(m, j.m, at, j.n);
  fetch(v, j.v, at, j.n);
  fetch(x, j.x, at, j.n);
  fetch(g, j.g, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const u64 i = index_of(at, lane, h);
    const float gi = g(lane, h);
    const float mi = j.betas.beta1 * m(lane, h) + j.betas.one_minus_beta1 * gi;
    const float vi = j.betas.beta2 * v(lane, h) + (j.betas.one_minus_beta2 * gi) * gi;
    j.m[i] = mi;
    j.v[i] = vi;
    const float change = (j.step_size * mi) / (root(vi) / j.sqrt_bias2 + j.eps);
    put(j.x, i, j.decay.kept(x(lane, h), change) - change);
  });
}

// kernels::dense_lion
struct DenseLion {
  Values g;
  Stored m;
  Halves x;
  u64 n;
  Betas betas;
  Rate rate;
  const u32* guard;
};
PRIDE_BODY void dense_lion(const DenseLion& j, u64 at) {
  if (is_faulty(j.guard)) return;
  Chunk<float> g, m, x;
  fetch(m, j.m, at, j.n);
  fetch(x, j.x, at, j.n);
  fetch(g, j.g, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const u64 i = index_of(at, lane, h);
    const float u = j.betas.beta1 * m(lane, h) + j.betas.one_minus_beta1 * g(lane, h);
    put(j.m, i, j.betas.beta2 * m(lane, h) + j.betas.one_minus_beta2 * g(lane, h));
    const float sign = u > 0 ? 1.0f : u < 0 ? -1.0f : 0.0f;
    put(j.x, i, j.rate.decay.kept(x(lane, h), sign) - j.rate.lr * sign);
  });
}

// kernels::sgd_momentum
struct SgdMomentum {
  Values g;
  float* m;
  Halves x;
  u64 n;
  Rate rate;
  float momentum;
  u32 nesterov;
  const u32* guard;
};
PRIDE_BODY void sgd_momentum(const SgdMomentum& j, u64 at) {
  if (is_faulty(j.guard)) return;
  Chunk<float> g, m, x;
  fetch(x, j.x, at, j.n);
  fetch(m, j.m, at, j.n);
  fetch(g, j.g, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const u64 i = index_of(at, lane, h);
    const float mi = j.momentum * m(lane, h) + g(lane, h);
    j.m[i] = mi;
    const float change = j.nesterov != 0 ? g(lane, h) + j.momentum * mi : mi;
    put(j.x, i, j.rate.decay.kept(x(lane, h), change) - j.rate.lr * change);
  });
}

}  // namespace pride::device
