// Types and functions of device kernels: lanes, values in their dtypes, chunks. The lanes are a
// warp on a GPU and a loop on the host. libpride embeds this file as text, before the other files
// of bodies: no includes, no libraries.
// SPDX-License-Identifier: Apache-2.0
//
#pragma once

#ifdef __CUDACC__
#define PRIDE_BODY __device__ inline
#define PRIDE_UNROLL _Pragma("unroll")
#define PRIDE_NO_UNROLL _Pragma("unroll 1")
#else
#define PRIDE_BODY inline
#define PRIDE_UNROLL
#define PRIDE_NO_UNROLL
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

// each(f) calls f(lane) for all lanes; bit `lane` of ballot(f) is f(lane); Lanes<T>: a T per lane.
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
// The same pointer. It tells the compiler that the pointer is to global memory.
template <typename T>
PRIDE_BODY T* global(T* at) {
  __builtin_assume(__isGlobal(at));
  return at;
}
// One lane writes.
PRIDE_BODY void store(u64* at, u64 word) {
  if (threadIdx.x % kLanes == 0) *global(at) = word;
}
PRIDE_BODY void lower(u32* slot, u32 value) {
  if (threadIdx.x % kLanes == 0) atomicMin(slot, value);
}
// not __builtin_bit_cast, which NVRTC has from 12.3 on
PRIDE_BODY u32 bits_of(float x) { return __float_as_uint(x); }
PRIDE_BODY float float_of(u32 bits) { return __uint_as_float(bits); }
PRIDE_BODY float root(float x) { return __fsqrt_rn(x); }
PRIDE_BODY double root(double x) { return __dsqrt_rn(x); }
PRIDE_BODY i32 nearest(float x) { return __float2int_rn(x); }  // ties to even
// Each lane gets the value of the lane `by` further on, modulo the warp's size.
template <typename T>
PRIDE_BODY Lanes<T> turned(Lanes<T>& x, u32 by) {
  return {__shfl_sync(0xFFFFFFFFu, x.value, (threadIdx.x + by) % kLanes)};
}
// The value of lane 0.
template <typename T>
PRIDE_BODY T first_of(Lanes<T>& x) {
  return __shfl_sync(0xFFFFFFFFu, x.value, 0);
}
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
inline u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
inline float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }
inline i32 nearest(float x) { return (i32)__builtin_nearbyintf(x); }
template <typename T>
inline Lanes<T> turned(Lanes<T>& x, u32 by) {
  Lanes<T> out;
  for (u32 lane = 0; lane < kLanes; ++lane) out[lane] = x[(lane + by) % kLanes];
  return out;
}
template <typename T>
inline T first_of(Lanes<T>& x) {
  return x[0];
}
template <typename T>
inline T* global(T* at) {
  return at;
}
#endif

// ---- Values -------------------------------------------------------------------------------------

// As pride::DType.
constexpr u32 kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2;

// Values of a tensor in their own dtype. Reads multiply them by `factor` and, unless that is null,
// by the float at `scale`.
struct Values {
  const void* data;
  u32 dtype;
  float factor;
  const float* scale;
};
PRIDE_BODY float factor_of(const Values& in) {
  return in.scale == nullptr ? in.factor : in.factor * *global(in.scale);
}

// pride/float16.h
PRIDE_BODY float from_float16(u16 half) {
  const u32 magnitude = half & 0x7FFFu;
  const float value = float_of(magnitude << 13) * 0x1p112f;
  const u32 bits = magnitude >= 0x7C00u ? 0x7F800000u | (magnitude << 13) : bits_of(value);
  return float_of(bits | (half & 0x8000u) << 16);
}
PRIDE_BODY u16 to_float16(float value) {
  const u32 bits = bits_of(value);
  const u32 sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const u32 small = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
  const u32 normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  u32 half = magnitude < 0x38800000u ? small : normal;
  if (magnitude >= 0x477FF000u) half = 0x7C00u;
  if (magnitude > 0x7F800000u) half = 0x7E00u | ((magnitude & ~0x00400000u) >> 13 & 0x1FFu);
  return (u16)(half | sign >> 16);
}
// pride/bf16.h
PRIDE_BODY float from_bfloat16(u16 bits) { return float_of((u32)bits << 16); }
PRIDE_BODY u16 to_bfloat16(float value) {
  const u32 bits = bits_of(value);
  if (value != value) return (u16)((bits | 0x00400000u) >> 16);
  return (u16)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

PRIDE_BODY float magnitude_of(float x) { return float_of(bits_of(x) & 0x7FFFFFFFu); }
PRIDE_BODY bool is_finite(float x) { return (bits_of(x) & 0x7FFFFFFFu) < 0x7F800000u; }

// pride/random_bits.h
PRIDE_BODY u64 mix64(u64 key, u64 counter) {
  u64 z = key + (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
// kernels::HashWords: words from bit `first` of a sequence on.
struct Hash {
  u64 key, first, flip;
  PRIDE_BODY u64 at(u64 k, u64) const {
    const u64 word = mix64(key, first / 64 + k);
    const u32 shift = (u32)first % 64;
    if (shift == 0) return word ^ flip;
    return ((word >> shift) | (mix64(key, first / 64 + k + 1) << (64 - shift))) ^ flip;
  }
};
// pride::Decay
struct Decay {
  float same, opposite;
  // x*decay, before `change` is subtracted
  PRIDE_BODY float kept(float x, float change) const {
    return x * (change != 0 && (x < 0) != (change < 0) ? opposite : same);
  }
};
// kernels::Blend, kernels::Step
struct Betas {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
};
struct Rate {
  Decay decay;
  float lr;
};
// The word in which a tensor with a NaN or Inf is noted. The lowest number stays.
struct Fault {
  u32* slot;
  u32 tensor;
};
// Whether a fault was noted in a guard, which may be null. Such jobs are skipped.
PRIDE_BODY bool is_faulty(const u32* guard) { return guard != nullptr && *guard != kNoTensor; }

// In the chunk from `at` on, a lane has the coordinates at + 32 h + lane, h = 0 to 7. A body
// fetches everything before it writes, so that a lane has eight loads of each array in flight.
PRIDE_BODY u32 count_of(u64 at, u64 n) { return n - at < kChunk ? (u32)(n - at) : (u32)kChunk; }

// Calls f(lane, h) for the chunk's coordinates below n.
template <typename F>
PRIDE_BODY void for_chunk(u64 at, u64 n, F f) {
  const u32 count = count_of(at, n);
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) {
      if (kLanes * h + lane < count) f(lane, h);
    });
  }
}
PRIDE_BODY u64 index_of(u64 at, u32 lane, u32 h) { return at + kLanes * h + lane; }

template <typename T>
struct Chunk {
  Lanes<T> of[kLoads];
  PRIDE_BODY T& operator()(u32 lane, u32 h) { return of[h][lane]; }
};

template <typename T>
PRIDE_BODY void fill(Chunk<T>& out, T value) {
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) { out(lane, h) = value; });
  }
}
// Coordinates from n on become 0.
template <typename T>
PRIDE_BODY void fetch(Chunk<T>& out, const T* in, u64 at, u64 n) {
  const u32 count = count_of(at, n);
  const T* const from = global(in) + at;
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) {
      T value = 0;
      if (kLanes * h + lane < count) value = from[kLanes * h + lane];
      out(lane, h) = value;
    });
  }
}
template <typename F>
PRIDE_BODY void map_chunk(Chunk<float>& out, Chunk<u16>& in, F f) {
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) { out(lane, h) = f(in(lane, h)); });
  }
}
PRIDE_BODY void fetch(Chunk<float>& out, const Values& in, u64 at, u64 n) {
  if (in.dtype == kFloat32) {
    fetch(out, (const float*)in.data, at, n);
  } else {
    Chunk<u16> narrow;
    fetch(narrow, (const u16*)in.data, at, n);
    if (in.dtype == kBFloat16) {
      map_chunk(out, narrow, from_bfloat16);
    } else {
      map_chunk(out, narrow, from_float16);
    }
  }
  const float factor = factor_of(in);
  if (factor == 1.0f) return;
  for_chunk(at, n, [&](u32 lane, u32 h) { out(lane, h) *= factor; });
}

// base/floats.h: floats, or the two halves of each.
struct Halves {
  void* data;  // floats, or with `lower` the upper halves
  u16* lower;
};
// Floats, or bfloat16. Separate from Halves: with all three in one type, kernels lacked registers.
struct Stored {
  void* data;
  u64 narrow;  // not 0: bfloat16
};
PRIDE_BODY float joined(u16 upper, u16 lower) {
  const u32 high = (u32)upper << 16, magnitude = high & 0x7FFFFFFFu;
  const u32 rest = (u32)(i32)(short)lower;
  const bool below_zero = magnitude == 0 && (lower & 0x8000u) != 0;
  const bool above_infinity = magnitude == 0x7F800000u && (lower & 0x8000u) == 0;
  return float_of(below_zero || above_infinity ? high : high + rest);
}
PRIDE_BODY u16 upper_half(float x) {
  const u32 bits = bits_of(x);
  return (u16)((x != x ? bits | 0x00400000u : bits + 0x8000u) >> 16);
}
PRIDE_BODY u16 lower_half(float x) { return x != x ? (u16)0 : (u16)bits_of(x); }
PRIDE_BODY void fetch(Chunk<float>& out, const Halves& in, u64 at, u64 n) {
  if (in.lower == nullptr) return fetch(out, (const float*)in.data, at, n);
  Chunk<u16> upper, lower;
  fetch(upper, (const u16*)in.data, at, n);
  fetch(lower, (const u16*)in.lower, at, n);
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) { out(lane, h) = joined(upper(lane, h), lower(lane, h)); });
  }
}
PRIDE_BODY float value_of(const Halves& in, u64 i) {
  if (in.lower == nullptr) return global((const float*)in.data)[i];
  return joined(global((const u16*)in.data)[i], global((const u16*)in.lower)[i]);
}
PRIDE_BODY void put(const Halves& out, u64 i, float x) {
  if (out.lower == nullptr) {
    global((float*)out.data)[i] = x;
  } else {
    global((u16*)out.data)[i] = upper_half(x);
    global(out.lower)[i] = lower_half(x);
  }
}
PRIDE_BODY void fetch(Chunk<float>& out, const Stored& in, u64 at, u64 n) {
  if (in.narrow == 0) return fetch(out, (const float*)in.data, at, n);
  Chunk<u16> narrow;
  fetch(narrow, (const u16*)in.data, at, n);
  map_chunk(out, narrow, from_bfloat16);
}
PRIDE_BODY void put(const Stored& out, u64 i, float x) {
  if (out.narrow == 0) {
    global((float*)out.data)[i] = x;
  } else {
    global((u16*)out.data)[i] = to_bfloat16(x);
  }
}

// The four words of bits of a chunk.
struct Words {
  u64 of[kLoads / 2];
  PRIDE_BODY bool at(u32 lane, u32 h) const {
    return ((u32)(of[h / 2] >> (32 * (h % 2))) >> lane) & 1;
  }
};
PRIDE_BODY void fetch(Words& out, const u64* bits, u64 at, u64 n) {
  const u32 count = count_of(at, n);
  const u64* const from = global(bits) + at / 64;
  PRIDE_UNROLL
  for (u32 w = 0; w < kLoads / 2; ++w) {
    u64 word = 0;
    if (64 * w < count) word = from[w];
    out.of[w] = word;
  }
}

// Whether f(lane, h) is true for a coordinate below n. It is called for all of them.
template <typename F>
PRIDE_BODY bool any_of(u64 at, u64 n, F f) {
  Lanes<bool> found;
  each([&](u32 lane) { found[lane] = false; });
  for_chunk(at, n, [&](u32 lane, u32 h) { found[lane] |= f(lane, h); });
  return ballot([&](u32 lane) { return found[lane]; }) != 0;
}

// kernels::SharedBits of cells
struct Cells {
  Halves x;
  float per_cell;
  u32 flip;  // 0 or all ones
  PRIDE_BODY bool bit_of(u64 i) const {
    const float y = value_of(x, i) * per_cell;
    // |y| < 2^23, and no NaN; then truncation is exact, and one more below is the floor
    if (!(magnitude_of(y) < 8388608.0f)) return false;
    const i32 whole = (i32)y;
    return ((u32)(whole - ((float)whole > y ? 1 : 0)) & 1u) != 0;
  }
  // Of n coordinates.
  PRIDE_BODY u64 at(u64 k, u64 n) const {
    u64 word = 0;
    PRIDE_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const u64 first = 64 * k + kLanes * half;
      word |=
          (u64)(ballot([&](u32 lane) { return first + lane < n && bit_of(first + lane); }) ^ flip)
          << (32 * half);
    }
    return word;
  }
};

// Stores the sign bits. The bit of a zero comes from `zeros`.
template <typename Bits>
PRIDE_BODY void store_signs(u64* bits, u64 at, u64 n, const Bits& zeros, Chunk<float>& x) {
  const u32 count = count_of(at, n);
  PRIDE_UNROLL
  for (u32 w = 0; w < kLoads / 2; ++w) {
    if (64 * w >= count) return;
    u64 word = 0, zero_bits = 0;
    PRIDE_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const u32 h = 2 * w + half;
      word |= (u64)ballot([&](u32 lane) { return x(lane, h) > 0; }) << (32 * half);
      zero_bits |=
          (u64)ballot([&](u32 lane) { return x(lane, h) == 0 && kLanes * h + lane < count; })
          << (32 * half);
    }
    const u64 k = at / 64 + w;
    if (zero_bits != 0) word |= zero_bits & zeros.at(k, n);
    store(bits + k, word);
  }
}

}  // namespace pride::device
