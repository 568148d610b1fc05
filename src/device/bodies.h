// The kernels of a device: each body once, for a chunk of coordinates. It is compiled by NVRTC for
// a GPU, where a warp takes a chunk, and by the host's compiler for the device of the tests, where
// a loop plays the lanes. libpride holds this file as a text: no includes, no libraries.
// SPDX-License-Identifier: Apache-2.0
//
// Contracts and bits are those of src/kernels: float32, every operation rounded, no FMA.
#pragma once

#ifdef __CUDACC__
#define PRIDE_BODY __device__ inline
#define PRIDE_BITS(type, x) __builtin_bit_cast(type, x)
#else
#define PRIDE_BODY inline
#define PRIDE_BITS(type, x) __builtin_bit_cast(type, x)
#endif

namespace pride::device {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
#ifdef __CUDACC__
using u64 = unsigned long long;
#else
using u64 = unsigned long;  // std::uint64_t of this ABI
#endif
static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(u16) == 2);

constexpr u32 kLanes = 32;
constexpr u32 kLoads = 8;                // coordinates of a lane in a chunk
constexpr u64 kChunk = kLanes * kLoads;  // 256: four words of packed bits
constexpr u32 kNoTensor = 0xFFFFFFFFu;

// ---- Lanes --------------------------------------------------------------------------------------

// each(f) calls f(lane) for all lanes; ballot(f) has bit `lane` = f(lane); Lanes<T>: a T for each.
#ifdef __CUDACC__
template <typename F>
PRIDE_BODY void each(F f) {
  f(threadIdx.x % kLanes);
}
template <typename F>
PRIDE_BODY u32 ballot(F f) {
  return __ballot_sync(0xFFFFFFFFu, f(threadIdx.x % kLanes));
}
template <typename T>
struct Lanes {
  T value;
  PRIDE_BODY T& operator[](u32) { return value; }
};
// By one lane.
PRIDE_BODY void store(u64* at, u64 word) {
  if (threadIdx.x % kLanes == 0) *at = word;
}
PRIDE_BODY void lower(u32* slot, u32 value) {
  if (threadIdx.x % kLanes == 0) atomicMin(slot, value);
}
PRIDE_BODY float root(float x) { return __fsqrt_rn(x); }
#else
template <typename F>
inline void each(F f) {
  for (u32 lane = 0; lane < kLanes; ++lane) f(lane);
}
template <typename F>
inline u32 ballot(F f) {
  u32 bits = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) bits |= (f(lane) ? 1u : 0u) << lane;
  return bits;
}
template <typename T>
struct Lanes {
  T value[kLanes];
  T& operator[](u32 lane) { return value[lane]; }
};
inline void store(u64* at, u64 word) { *at = word; }
inline void lower(u32* slot, u32 value) { *slot = value < *slot ? value : *slot; }
inline float root(float x) { return __builtin_sqrtf(x); }
#endif

// ---- Values -------------------------------------------------------------------------------------

// As pride::DType.
constexpr u32 kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2;

// Values of a tensor in their own type, each times `factor`.
struct Values {
  const void* data;
  u32 dtype;
  float factor;
};

// pride/float16.h
PRIDE_BODY float from_float16(u16 half) {
  const u32 magnitude = half & 0x7FFFu;
  const float value = PRIDE_BITS(float, magnitude << 13) * 0x1p112f;
  const u32 bits = magnitude >= 0x7C00u ? 0x7F800000u | (magnitude << 13) : PRIDE_BITS(u32, value);
  return PRIDE_BITS(float, bits | (half & 0x8000u) << 16);
}
PRIDE_BODY u16 to_float16(float value) {
  const u32 bits = PRIDE_BITS(u32, value);
  const u32 sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const u32 small = PRIDE_BITS(u32, PRIDE_BITS(float, magnitude) + 0.5f) - 0x3F000000u;
  const u32 normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  u32 half = magnitude < 0x38800000u ? small : normal;
  if (magnitude >= 0x477FF000u) half = 0x7C00u;
  if (magnitude > 0x7F800000u) half = 0x7E00u | ((magnitude & ~0x00400000u) >> 13 & 0x1FFu);
  return (u16)(half | sign >> 16);
}
// pride/bf16.h
PRIDE_BODY float from_bfloat16(u16 bits) { return PRIDE_BITS(float, (u32)bits << 16); }
PRIDE_BODY u16 to_bfloat16(float value) {
  const u32 bits = PRIDE_BITS(u32, value);
  if (value != value) return (u16)((bits | 0x00400000u) >> 16);
  return (u16)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

PRIDE_BODY float load(const Values& v, u64 i) {
  float x;
  if (v.dtype == kFloat32) {
    x = ((const float*)v.data)[i];
  } else if (v.dtype == kBFloat16) {
    x = from_bfloat16(((const u16*)v.data)[i]);
  } else {
    x = from_float16(((const u16*)v.data)[i]);
  }
  return v.factor == 1.0f ? x : x * v.factor;
}

PRIDE_BODY bool is_finite(float x) { return (PRIDE_BITS(u32, x) & 0x7FFFFFFFu) < 0x7F800000u; }

// pride/random_bits.h
PRIDE_BODY u64 mix64(u64 key, u64 counter) {
  u64 z = key + (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
// kernels::HashWords
struct Hash {
  u64 key, first_word, flip;
  PRIDE_BODY u64 at(u64 k) const { return mix64(key, first_word + k) ^ flip; }
};
// kernels::Blend, kernels::Step
struct Betas {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
};
struct Rate {
  float decay, lr;
};
// Where a tensor with a NaN or Inf is noted: the lowest number stays.
struct Fault {
  u32* slot;
  u32 tensor;
};

// Calls f(lane, i) for the coordinates i < n of the chunk from `at` on.
template <typename F>
PRIDE_BODY void for_chunk(u64 at, u64 n, F f) {
#ifdef __CUDACC__
#pragma unroll
#endif
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) {
      const u64 i = at + kLanes * h + lane;
      if (i < n) f(i);
    });
  }
}

// Word w of four in a chunk: positive(lane, h) and zero(lane, h) of its halves h.
template <typename Positive, typename Zero>
PRIDE_BODY void store_signs(u64* bits, u64 at, u64 n, const Hash& zeros, Positive positive,
                            Zero zero) {
#ifdef __CUDACC__
#pragma unroll
#endif
  for (u32 w = 0; w < kLoads / 2; ++w) {
    if (at + 64 * w >= n) return;
    u64 word = 0, zero_bits = 0;
    for (u32 half = 0; half < 2; ++half) {
      const u32 h = 2 * w + half;
      word |= (u64)ballot([&](u32 lane) { return positive(lane, h); }) << (32 * half);
      zero_bits |= (u64)ballot([&](u32 lane) { return zero(lane, h); }) << (32 * half);
    }
    const u64 k = at / 64 + w;
    if (zero_bits != 0) word |= zero_bits & zeros.at(k);
    store(bits + k, word);
  }
}

// ---- Gradients and parameters in their own type -------------------------------------------------

struct Widen {
  Values in;
  float* out;
  u64 n;
};
PRIDE_BODY void widen(const Widen& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) { j.out[i] = load(j.in, i); });
}

// A parameter narrower than float32, and its master. dtype: kBFloat16 or kFloat16.
struct Narrow {
  void* values;
  float* master;
  u64 n;
  u32 dtype;
};
PRIDE_BODY u16 rounded(const Narrow& j, float x) {
  return j.dtype == kBFloat16 ? to_bfloat16(x) : to_float16(x);
}
// values = the rounded masters
PRIDE_BODY void publish(const Narrow& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) { ((u16*)j.values)[i] = rounded(j, j.master[i]); });
}
// master = the value where that is not the rounded master
PRIDE_BODY void adopt(const Narrow& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    const u16 value = ((const u16*)j.values)[i];
    if (value == rounded(j, j.master[i])) return;
    j.master[i] = j.dtype == kBFloat16 ? from_bfloat16(value) : from_float16(value);
  });
}

// ---- Encode -------------------------------------------------------------------------------------

// kernels::lion_sign_update
struct LionSigns {
  Values g;
  float* m;
  u64* bits;
  u64 n;
  Betas betas;
  Hash zeros;
  Fault fault;
};
PRIDE_BODY void lion_signs(const LionSigns& j, u64 at) {
  Lanes<float> u[kLoads];
  u32 bad = 0;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (u32 h = 0; h < kLoads; ++h) {
    bad |= ballot([&](u32 lane) {
      const u64 i = at + kLanes * h + lane;
      u[h][lane] = -1.0f;  // no bit
      if (i >= j.n) return false;
      const float m = j.m[i], g = load(j.g, i);
      const float blend = j.betas.beta1 * m + j.betas.one_minus_beta1 * g;
      const float next = j.betas.beta2 * m + j.betas.one_minus_beta2 * g;
      if (!is_finite(blend) || !is_finite(next)) return true;
      u[h][lane] = blend;
      j.m[i] = next;
      return false;
    });
  }
  store_signs(
      j.bits, at, j.n, j.zeros, [&](u32 lane, u32 h) { return u[h][lane] > 0; },
      [&](u32 lane, u32 h) { return u[h][lane] == 0; });
  if (bad != 0) lower(j.fault.slot, j.fault.tensor);
}

// kernels::lion_blend
struct LionBlend {
  Values g;
  float* m;
  float* u;
  u64 n;
  Betas betas;
  Fault fault;
};
PRIDE_BODY void lion_blend(const LionBlend& j, u64 at) {
  u32 bad = 0;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (u32 h = 0; h < kLoads; ++h) {
    bad |= ballot([&](u32 lane) {
      const u64 i = at + kLanes * h + lane;
      if (i >= j.n) return false;
      const float m = j.m[i], g = load(j.g, i);
      const float blend = j.betas.beta1 * m + j.betas.one_minus_beta1 * g;
      const float next = j.betas.beta2 * m + j.betas.one_minus_beta2 * g;
      const bool finite = is_finite(blend) && is_finite(next);
      j.u[i] = finite ? blend : 0.0f;
      if (finite) j.m[i] = next;
      return !finite;
    });
  }
  if (bad != 0) lower(j.fault.slot, j.fault.tensor);
}

// kernels::pack_signs
struct PackSigns {
  const float* p;
  u64* bits;
  u64 n;
  Hash zeros;
};
PRIDE_BODY void pack_signs(const PackSigns& j, u64 at) {
  const auto value = [&](u32 lane, u32 h) {
    const u64 i = at + kLanes * h + lane;
    return i < j.n ? j.p[i] : -1.0f;
  };
  store_signs(
      j.bits, at, j.n, j.zeros, [&](u32 lane, u32 h) { return value(lane, h) > 0; },
      [&](u32 lane, u32 h) { return value(lane, h) == 0; });
}

// ---- Apply --------------------------------------------------------------------------------------

// kernels::apply_signs, or with `nonzero` kernels::apply_ternary
struct ApplySigns {
  const u64 *positive, *nonzero;
  float* x;
  u64 n;
  Rate rate;
};
PRIDE_BODY void apply_signs(const ApplySigns& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    const float decayed = j.x[i] * j.rate.decay;
    const float change = (j.positive[i / 64] >> (i % 64)) & 1 ? j.rate.lr : -j.rate.lr;
    const bool any = j.nonzero == nullptr || ((j.nonzero[i / 64] >> (i % 64)) & 1) != 0;
    j.x[i] = any ? decayed - change : decayed;
  });
}

// kernels::apply_counts
struct ApplyCounts {
  const u64* planes;
  u64 n_planes, stride;
  float* x;
  u64 n;
  Rate rate;
  i32 present, world;
};
PRIDE_BODY void apply_counts(const ApplyCounts& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    u32 count = 0;
    for (u64 p = 0; p < j.n_planes; ++p) {
      count |= (u32)((j.planes[p * j.stride + i / 64] >> (i % 64)) & 1) << p;
    }
    const i32 sum = 2 * (i32)count - j.present;
    j.x[i] = j.x[i] * j.rate.decay - j.rate.lr * ((float)sum / (float)j.world);
  });
}

// kernels::apply_packed_counts
struct ApplyPacked {
  const u32* packed;
  u64 n_digits, first_word;
  float* x;
  u64 n;
  Rate rate;
  i32 present, world;
  u32 base;
};
PRIDE_BODY void apply_packed(const ApplyPacked& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    const u64 word = j.first_word + i / 64;
    u32 rest = j.packed[64 * (word / j.n_digits) + i % 64];
    for (u64 k = word % j.n_digits; k > 0; --k) rest *= j.base;
    const u32 count = (u32)(((u64)rest * j.base) >> 32);
    const i32 sum = 2 * (i32)count - j.present;
    j.x[i] = j.x[i] * j.rate.decay - j.rate.lr * ((float)sum / (float)j.world);
  });
}

// kernels::scale, kernels::apply_decay
struct Scale {
  float* x;
  u64 n;
  float factor;
};
PRIDE_BODY void scale(const Scale& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) { j.x[i] = j.x[i] * j.factor; });
}

// kernels::add
struct Add {
  const float* e;
  float* u;
  u64 n;
};
PRIDE_BODY void add(const Add& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) { j.u[i] = j.u[i] + j.e[i]; });
}

// kernels::first_non_finite
struct Check {
  Values g;
  u64 n;
  Fault fault;
};
PRIDE_BODY void check(const Check& j, u64 at) {
  u32 bad = 0;
  for (u32 h = 0; h < kLoads; ++h) {
    bad |= ballot([&](u32 lane) {
      const u64 i = at + kLanes * h + lane;
      return i < j.n && !is_finite(load(j.g, i));
    });
  }
  if (bad != 0) lower(j.fault.slot, j.fault.tensor);
}

// ---- Rules --------------------------------------------------------------------------------------

// kernels::adamw
struct AdamW {
  const float* g;
  float *m, *v, *x;
  u64 n;
  Betas betas;
  float step_size, sqrt_bias2, eps, decay;
};
PRIDE_BODY void adamw(const AdamW& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    const float g = j.g[i];
    const float m = j.betas.beta1 * j.m[i] + j.betas.one_minus_beta1 * g;
    const float v = j.betas.beta2 * j.v[i] + (j.betas.one_minus_beta2 * g) * g;
    j.m[i] = m;
    j.v[i] = v;
    j.x[i] = j.x[i] * j.decay - (j.step_size * m) / (root(v) / j.sqrt_bias2 + j.eps);
  });
}

// kernels::dense_lion
struct DenseLion {
  const float* g;
  float *m, *x;
  u64 n;
  Betas betas;
  Rate rate;
};
PRIDE_BODY void dense_lion(const DenseLion& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    const float m = j.m[i], g = j.g[i];
    const float u = j.betas.beta1 * m + j.betas.one_minus_beta1 * g;
    j.m[i] = j.betas.beta2 * m + j.betas.one_minus_beta2 * g;
    const float sign = u > 0 ? 1.0f : u < 0 ? -1.0f : 0.0f;
    j.x[i] = j.x[i] * j.rate.decay - j.rate.lr * sign;
  });
}

// kernels::sgd_momentum
struct SgdMomentum {
  const float* g;
  float *m, *x;
  u64 n;
  Rate rate;
  float momentum;
  u32 nesterov;
};
PRIDE_BODY void sgd_momentum(const SgdMomentum& j, u64 at) {
  for_chunk(at, j.n, [&](u64 i) {
    const float g = j.g[i], m = j.momentum * j.m[i] + g;
    j.m[i] = m;
    const float change = j.nesterov != 0 ? g + j.momentum * m : m;
    j.x[i] = j.x[i] * j.rate.decay - j.rate.lr * change;
  });
}

// ---- All of them --------------------------------------------------------------------------------

#define PRIDE_KERNELS                     \
  PRIDE_KERNEL(widen, Widen)              \
  PRIDE_KERNEL(publish, Narrow)           \
  PRIDE_KERNEL(adopt, Narrow)             \
  PRIDE_KERNEL(lion_signs, LionSigns)     \
  PRIDE_KERNEL(lion_blend, LionBlend)     \
  PRIDE_KERNEL(pack_signs, PackSigns)     \
  PRIDE_KERNEL(apply_signs, ApplySigns)   \
  PRIDE_KERNEL(apply_counts, ApplyCounts) \
  PRIDE_KERNEL(apply_packed, ApplyPacked) \
  PRIDE_KERNEL(scale, Scale)              \
  PRIDE_KERNEL(add, Add)                  \
  PRIDE_KERNEL(check, Check)              \
  PRIDE_KERNEL(adamw, AdamW)              \
  PRIDE_KERNEL(dense_lion, DenseLion)     \
  PRIDE_KERNEL(sgd_momentum, SgdMomentum)

#ifdef __CUDACC__
// The job of a chunk: first[job] <= chunk < first[job + 1].
PRIDE_BODY u32 job_of(const u64* first, u32 n, u64 chunk) {
  u32 low = 0, high = n;  // first[low] <= chunk < first[high]
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
#define PRIDE_KERNEL(name, Job)                                                       \
  extern "C" __global__ void pride_##name(const Job* jobs, const u64* first, u32 n) { \
    const u64 warps = (u64)gridDim.x * (blockDim.x / kLanes);                         \
    u64 chunk = (u64)blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;       \
    for (; chunk < first[n]; chunk += warps) {                                        \
      const u32 job = job_of(first, n, chunk);                                        \
      name(jobs[job], (chunk - first[job]) * kChunk);                                 \
    }                                                                                 \
  }
PRIDE_KERNELS
#undef PRIDE_KERNEL
#endif

}  // namespace pride::device
