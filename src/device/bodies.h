// Device kernels. Each body is written once, for a chunk of coordinates. NVRTC compiles it for a
// GPU, where a warp runs a chunk; the host's compiler compiles it for the device of the tests,
// where a loop runs the lanes. libpride embeds this file as text, after lanes.h and other bodies.
// SPDX-License-Identifier: Apache-2.0
//
// Contracts and bits are those of src/kernels: float32, every operation rounded, no FMA.
#pragma once

#ifndef __CUDACC__
#include "device/level_bodies.h"
#include "device/rule_bodies.h"
#endif

namespace pride::device {

// ---- Gradients and parameters in their own type -------------------------------------------------

struct Widen {
  Values in;
  float* out;
  u64 n;
};
PRIDE_BODY void widen(const Widen& j, u64 at) {
  Chunk<float> x;
  fetch(x, j.in, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) { global(j.out)[index_of(at, lane, h)] = x(lane, h); });
}

// out = in. Each is floats or halves, or bfloat16 alone if its `narrow` is set.
struct Copy {
  Halves in, out;
  u64 n;
  u32 narrow_in, narrow_out;
};
PRIDE_BODY void copy(const Copy& j, u64 at) {
  Chunk<float> x;
  if (j.narrow_in != 0) {
    fetch(x, Stored{j.in.data, 1}, at, j.n);
  } else {
    fetch(x, j.in, at, j.n);
  }
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    if (j.narrow_out != 0) {
      put(Stored{j.out.data, 1}, index_of(at, lane, h), x(lane, h));
    } else {
      put(j.out, index_of(at, lane, h), x(lane, h));
    }
  });
}

// A parameter in float16, and its master.
struct Narrow {
  u16* values;
  float* master;
  u64 n;
};
// values = the rounded masters
PRIDE_BODY void publish(const Narrow& j, u64 at) {
  Chunk<float> master;
  fetch(master, j.master, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    j.values[index_of(at, lane, h)] = to_float16(master(lane, h));
  });
}
// master = the value where that is not the rounded master
PRIDE_BODY void adopt(const Narrow& j, u64 at) {
  Chunk<u16> values;
  Chunk<float> master;
  fetch(values, (const u16*)j.values, at, j.n);
  fetch(master, j.master, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const u16 value = values(lane, h);
    if (value == to_float16(master(lane, h))) return;
    j.master[index_of(at, lane, h)] = from_float16(value);
  });
}

// ---- Encode -------------------------------------------------------------------------------------

// kernels::lion_sign_update
struct LionSigns {
  Values g;
  Stored m;
  u64* bits;
  u64 n;
  Betas betas;
  Cells zeros;
  Fault fault;
};
PRIDE_BODY void lion_signs(const LionSigns& j, u64 at) {
  Chunk<float> m, u;
  fetch(m, j.m, at, j.n);
  fetch(u, j.g, at, j.n);
  const bool bad = any_of(at, j.n, [&](u32 lane, u32 h) {
    const float blend = j.betas.beta1 * m(lane, h) + j.betas.one_minus_beta1 * u(lane, h);
    const float next = j.betas.beta2 * m(lane, h) + j.betas.one_minus_beta2 * u(lane, h);
    const bool finite = is_finite(blend) && is_finite(next);
    u(lane, h) = finite ? blend : -1.0f;
    if (finite) put(j.m, index_of(at, lane, h), next);
    return !finite;
  });
  store_signs(j.bits, at, j.n, j.zeros, u);
  if (bad) lower(j.fault.slot, j.fault.tensor);
}

// kernels::lion_blend
struct LionBlend {
  Values g;
  Stored m;
  float* u;
  u64 n;
  Betas betas;
  Fault fault;
  const u32* guard;
};
PRIDE_BODY void lion_blend(const LionBlend& j, u64 at) {
  if (is_faulty(j.guard)) return;
  Chunk<float> m, g;
  fetch(m, j.m, at, j.n);
  fetch(g, j.g, at, j.n);
  const bool bad = any_of(at, j.n, [&](u32 lane, u32 h) {
    const u64 i = index_of(at, lane, h);
    const float blend = j.betas.beta1 * m(lane, h) + j.betas.one_minus_beta1 * g(lane, h);
    const float next = j.betas.beta2 * m(lane, h) + j.betas.one_minus_beta2 * g(lane, h);
    const bool finite = is_finite(blend) && is_finite(next);
    global(j.u)[i] = finite ? blend : 0.0f;
    if (finite) put(j.m, i, next);
    return !finite;
  });
  if (bad) lower(j.fault.slot, j.fault.tensor);
}

// kernels::pack_signs; if the guard has a fault, all bits become 0 and the fault is noted
struct PackSigns {
  const float* p;
  u64* bits;
  u64 n;
  Cells zeros;
  const u32* guard;
  Fault fault;
};
PRIDE_BODY void pack_signs(const PackSigns& j, u64 at) {
  Chunk<float> p;
  if (is_faulty(j.guard)) {
    fill(p, -1.0f);
    lower(j.fault.slot, j.fault.tensor);
  } else {
    fetch(p, j.p, at, j.n);
  }
  store_signs(j.bits, at, j.n, j.zeros, p);
}

// SharedBits of cells, in whole words
struct CellBits {
  Cells cells;
  u64* bits;
  u64 n;
};
PRIDE_BODY void cell_bits(const CellBits& j, u64 at) {
  const u32 count = count_of(at, j.n);
  for (u32 w = 0; 64 * w < count; ++w) store(j.bits + at / 64 + w, j.cells.at(at / 64 + w, j.n));
}

// ---- Apply --------------------------------------------------------------------------------------

// kernels::apply_signs, or with `nonzero` kernels::apply_ternary
struct ApplySigns {
  const u64 *positive, *nonzero;
  Halves x;
  u64 n;
  Rate rate;
};
PRIDE_BODY void apply_signs(const ApplySigns& j, u64 at) {
  Words positive, nonzero{};
  Chunk<float> x;
  fetch(positive, j.positive, at, j.n);
  if (j.nonzero != nullptr) fetch(nonzero, j.nonzero, at, j.n);
  fetch(x, j.x, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const bool any = j.nonzero == nullptr || nonzero.at(lane, h);
    const float change = !any ? 0 : positive.at(lane, h) ? j.rate.lr : -j.rate.lr;
    put(j.x, index_of(at, lane, h), j.rate.decay.kept(x(lane, h), change) - change);
  });
}

// kernels::apply_counts
struct ApplyCounts {
  const u64* planes;
  u64 n_planes, stride;
  Halves x;
  u64 n;
  Rate rate;
  i32 present, world;
};
PRIDE_BODY void apply_counts(const ApplyCounts& j, u64 at) {
  Chunk<float> x;
  fetch(x, j.x, at, j.n);
  Chunk<u32> counts;
  fill(counts, 0u);
  for (u32 p = 0; p < (u32)j.n_planes; ++p) {
    Words plane;
    fetch(plane, j.planes + p * j.stride, at, j.n);
    for_chunk(at, j.n, [&](u32 lane, u32 h) { counts(lane, h) |= (u32)plane.at(lane, h) << p; });
  }
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const i32 sum = 2 * (i32)counts(lane, h) - j.present;
    const float mean = (float)sum / (float)j.world;
    put(j.x, index_of(at, lane, h), j.rate.decay.kept(x(lane, h), mean) - j.rate.lr * mean);
  });
}

// kernels::apply_packed_counts
struct ApplyPacked {
  const u32* packed;
  u64 n_digits, first_word;
  Halves x;
  u64 n;
  Rate rate;
  i32 present, world;
  u32 base;
};
PRIDE_BODY void apply_packed(const ApplyPacked& j, u64 at) {
  Chunk<float> x;
  fetch(x, j.x, at, j.n);
  Chunk<u32> rest;
  const u32 count = count_of(at, j.n);
  const u64 word = j.first_word + at / 64;
  u64 group = word / j.n_digits;
  u32 digit = (u32)(word % j.n_digits), power = 1;  // base^digit, modulo 2^32
  for (u32 k = 0; k < digit; ++k) power *= j.base;
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    const u32* const from = j.packed + 64 * group + kLanes * (h % 2);
    each([&](u32 lane) {
      u32 packed = 0;
      if (kLanes * h + lane < count) packed = from[lane];
      rest(lane, h) = packed * power;
    });
    if (h % 2 == 0) continue;
    const bool last = ++digit == (u32)j.n_digits;  // of its group
    digit = last ? 0 : digit;
    power = last ? 1 : power * j.base;
    group += last ? 1 : 0;
  }
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const i32 sum = 2 * (i32)(((u64)rest(lane, h) * j.base) >> 32) - j.present;
    const float mean = (float)sum / (float)j.world;
    put(j.x, index_of(at, lane, h), j.rate.decay.kept(x(lane, h), mean) - j.rate.lr * mean);
  });
}

// kernels::scale, kernels::apply_decay
struct Scale {
  Halves x;
  u64 n;
  float factor;
};
PRIDE_BODY void scale(const Scale& j, u64 at) {
  Chunk<float> x;
  fetch(x, j.x, at, j.n);
  for_chunk(at, j.n,
            [&](u32 lane, u32 h) { put(j.x, index_of(at, lane, h), x(lane, h) * j.factor); });
}

// out = a + b
struct Sum {
  Halves a;
  const float* b;
  Halves out;
  u64 n;
};
PRIDE_BODY void sum(const Sum& j, u64 at) {
  Chunk<float> a, b;
  fetch(a, j.a, at, j.n);
  fetch(b, j.b, at, j.n);
  for_chunk(at, j.n,
            [&](u32 lane, u32 h) { put(j.out, index_of(at, lane, h), a(lane, h) + b(lane, h)); });
}

// x = value; with a guard, only if the guard holds a fault
struct Set {
  float* x;
  u64 n;
  float value;
  const u32* guard;
};
PRIDE_BODY void set(const Set& j, u64 at) {
  if (j.guard != nullptr && !is_faulty(j.guard)) return;
  for_chunk(at, j.n, [&](u32 lane, u32 h) { global(j.x)[index_of(at, lane, h)] = j.value; });
}

// Sets the fault if a value is not 0.
struct Any {
  const float* x;
  u64 n;
  Fault fault;
};
PRIDE_BODY void any(const Any& j, u64 at) {
  Chunk<float> x;
  fetch(x, j.x, at, j.n);
  const bool found = any_of(at, j.n, [&](u32 lane, u32 h) { return x(lane, h) != 0; });
  if (found) lower(j.fault.slot, j.fault.tensor);
}

// kernels::first_non_finite
struct Check {
  Values g;
  u64 n;
  Fault fault;
};
PRIDE_BODY void check(const Check& j, u64 at) {
  Chunk<float> g;
  fetch(g, j.g, at, j.n);
  const bool bad = any_of(at, j.n, [&](u32 lane, u32 h) { return !is_finite(g(lane, h)); });
  if (bad) lower(j.fault.slot, j.fault.tensor);
}

// ---- All of them --------------------------------------------------------------------------------

#define PRIDE_KERNELS                     \
  PRIDE_KERNEL(widen, Widen)              \
  PRIDE_KERNEL(copy, Copy)                \
  PRIDE_KERNEL(publish, Narrow)           \
  PRIDE_KERNEL(adopt, Narrow)             \
  PRIDE_KERNEL(lion_signs, LionSigns)     \
  PRIDE_KERNEL(lion_blend, LionBlend)     \
  PRIDE_KERNEL(pack_signs, PackSigns)     \
  PRIDE_KERNEL(cell_bits, CellBits)       \
  PRIDE_KERNEL(apply_signs, ApplySigns)   \
  PRIDE_KERNEL(apply_counts, ApplyCounts) \
  PRIDE_KERNEL(apply_packed, ApplyPacked) \
  PRIDE_KERNEL(scale, Scale)              \
  PRIDE_KERNEL(sum, Sum)                  \
  PRIDE_KERNEL(set, Set)                  \
  PRIDE_KERNEL(any, Any)                  \
  PRIDE_KERNEL(check, Check)              \
  PRIDE_KERNEL(adamw, AdamW)              \
  PRIDE_KERNEL(dense_lion, DenseLion)     \
  PRIDE_KERNEL(sgd_momentum, SgdMomentum) \
  PRIDE_SCALE_KERNELS                     \
  PRIDE_LEVEL_KERNELS

#ifdef __CUDACC__
// The job of a chunk: first[job] <= chunk < first[job + 1].  REQUIRES: it is not below `low`.
PRIDE_BODY u32 job_of(const u64* first, u32 low, u32 n, u64 chunk) {
  if (chunk < first[low + 1]) return low;
  u32 high = n;  // first[low] <= chunk < first[high]
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (first[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}
// Blocks that a multiprocessor can hold: with three a thread has 80 registers, with two 128.
template <typename Job>
inline constexpr u32 blocks_of = 3;
template <>
inline constexpr u32 blocks_of<Compress> = 2;
// Jobs are copied into registers: otherwise their fields would be read again after each store.
#define PRIDE_KERNEL(name, Job)                                                          \
  extern "C" __global__ void __launch_bounds__(256, blocks_of<Job>)                      \
      pride_##name(const Job* __restrict__ jobs, const u64* __restrict__ first, u32 n) { \
    const u64 warps = (u64)gridDim.x * (blockDim.x / kLanes), chunks = first[n];         \
    u64 chunk = (u64)blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;          \
    for (u32 job = 0; chunk < chunks; chunk += warps) {                                  \
      job = job_of(first, job, n, chunk);                                                \
      const Job of_chunk = jobs[job];                                                    \
      const u64 at = (chunk - first[job]) * kChunk;                                      \
      if (of_chunk.n - at >= kChunk) {                                                   \
        __builtin_assume(of_chunk.n - at >= kChunk);                                     \
        name(of_chunk, at);                                                              \
      } else {                                                                           \
        name(of_chunk, at);                                                              \
      }                                                                                  \
    }                                                                                    \
  }
PRIDE_KERNELS
#undef PRIDE_KERNEL
#endif

}  // namespace pride::device
