// Device kernels for levels of few bits: scales of the blend, levels, averaged momenta.
// libpride embeds this file as text, between scale_bodies.h and bodies.h. The rules of bodies.h
// apply.
// SPDX-License-Identifier: Apache-2.0
//
// Contracts and bits are those of src/kernels: float32 and double, every operation rounded, no FMA.
#pragma once

#ifndef __CUDACC__
#include "device/scale_bodies.h"
#endif

namespace pride::device {

constexpr float kZeroFloor = 0x1p-100f;  // kernels::kZeroFloor

// ---- Packed levels ------------------------------------------------------------------------------

// kernels::LevelShape, of a shard
struct Lines {
  u64* at;
  u64 first_word, n_words;  // of the job's first coordinate, and of the shard
  u32 bits;
  // Word k of the job in line 0, and the distance to its word in the next line.
  PRIDE_BODY u64* word(u64 k) const {
    const u64 w = first_word + k;
    return at + (w / 8 * 8 * bits + w % 8);
  }
  PRIDE_BODY u64 width(u64 k) const {
    const u64 run = (first_word + k) / 8 * 8;
    return n_words - run < 8 ? n_words - run : 8;
  }
};
PRIDE_BODY i32 largest_of(u32 bits) { return (1 << (bits - 1)) - 1; }

// Packs the codes of a chunk into their lines, those of the last word's padding too.
PRIDE_BODY void store_codes(const Lines& lines, u64 at, u64 n, Chunk<u32>& codes) {
  const u32 count = count_of(at, n);
  PRIDE_UNROLL
  for (u32 w = 0; w < kLoads / 2; ++w) {
    if (64 * w >= count) return;
    u64* to = lines.word(at / 64 + w);
    const u64 width = lines.width(at / 64 + w);
    for (u32 b = 0; b < lines.bits; ++b, to += width) {
      const u32 low = ballot([&](u32 lane) { return (codes(lane, 2 * w) >> b & 1) != 0; });
      const u32 high = ballot([&](u32 lane) { return (codes(lane, 2 * w + 1) >> b & 1) != 0; });
      store(to, (u64)high << 32 | low);
    }
  }
}

// kernels::quantise, to the nearest, plus the largest level
PRIDE_BODY u32 code_of(float u, float inv, i32 largest) {
  const float limit = (float)largest, scaled = u * inv;
  const float low = scaled < limit ? scaled : limit;
  return (u32)(nearest(low > -limit ? low : -limit) + largest);
}
PRIDE_BODY float inverse_of(float step) { return step == 0 ? 0.0f : 1.0f / step; }

// ---- Scales of the blend ------------------------------------------------------------------------

constexpr u32 kSumOfSizes = 0, kSumOfSquares = 1, kLargestSize = 2;

// Measures u = beta1 m + (1-beta1) g (+ e) of `length` coordinates, which begin at coordinate
// `lead` of a block and are cut into parts at blocks. A warp measures a part. It writes one number
// to `sums`, or the size of a level to `steps`.
struct Measure {
  Values g;
  const float *m, *e;  // e may be null
  double* sums;
  float* steps;
  u64 length, lead;
  u64 n;  // kChunk for each part
  float beta1, one_minus_beta1;
  u32 what;
  i32 largest;
};
PRIDE_BODY void largest_size(Lanes<float>& most, Chunk<float>& u) {
  PRIDE_UNROLL
  for (u32 h = 0; h < kLoads; ++h) {
    each([&](u32 lane) {
      const float size = magnitude_of(u(lane, h));
      most[lane] = size > most[lane] ? size : most[lane];
    });
  }
}
PRIDE_BODY float largest_of(Lanes<float>& x) {
  PRIDE_UNROLL
  for (u32 by = kLanes / 2; by > 0; by /= 2) {
    Lanes<float> other = turned(x, by);
    each([&](u32 lane) { x[lane] = other[lane] > x[lane] ? other[lane] : x[lane]; });
  }
  return first_of(x);
}
// The size of a level, from the part's sum or largest magnitude.
PRIDE_BODY float step_of(double sum, u64 n, u32 what, i32 largest) {
  double size = what == kLargestSize ? sum : sum / (double)n;
  if (what == kSumOfSquares) size = root(size);
  const float c = (float)size;
  if (!is_finite(c) || c < kZeroFloor) return 0;
  const float most = 0x1.FFFFFEp127f, twice = 2.0f * c;
  const float top = what == kLargestSize ? c : twice < most ? twice : most;
  return top / (float)largest;
}
PRIDE_BODY void measure(const Measure& j, u64 at) {
  const u64 part = at / kChunk, first = begin_of(part, j.lead);
  const u32 n = (u32)(end_of(part, j.lead, j.length) - first);
  const Values g = part_of(j.g, first);
  Partial partial;
  Lanes<float> most;
  each([&](u32 lane) { most[lane] = 0; });
  PRIDE_NO_UNROLL
  for (u32 c = 0; c < n; c += (u32)kChunk) {
    Chunk<float> u, old;
    fetch(old, j.m + first, c, n);
    fetch(u, g, c, n);
    for_chunk(c, n, [&](u32 lane, u32 h) {
      u(lane, h) = j.beta1 * old(lane, h) + j.one_minus_beta1 * u(lane, h);
    });
    if (j.e != nullptr) {
      fetch(old, j.e + first, c, n);
      for_chunk(c, n, [&](u32 lane, u32 h) { u(lane, h) = u(lane, h) + old(lane, h); });
    }
    if (j.what == kLargestSize) {
      largest_size(most, u);
    } else {
      partial.add(u, j.what == kSumOfSquares);
    }
  }
  const double sum = j.what == kLargestSize ? (double)largest_of(most) : partial.sum();
  each([&](u32 lane) {
    if (lane != 0) return;
    if (j.sums != nullptr) {
      j.sums[part] = sum;
    } else {
      j.steps[part] = step_of(sum, n, j.what, j.largest);
    }
  });
}

// ---- Levels -------------------------------------------------------------------------------------

// kernels::lion_blend, add and quantise; then pack_levels, or integers of `width` bytes if it is
// set. With e also keep_level_error, whose result is `next`.
struct Levels {
  Values g;
  float* m;
  const float *e, *steps;
  float* next;
  u64 length, first;  // coordinate i uses steps[(first + i) / length]
  u64 n;
  Lines lines;
  void* integers;
  u32 width;
  Betas betas;
  Fault fault;
};
// Indices into `steps` for the coordinates of a chunk, which overlaps at most two scopes.
struct Scopes {
  u64 base;
  u32 of_first;  // coordinates of the chunk in the first one
  PRIDE_BODY Scopes(u64 length, u64 first) : base(first / length) {
    const u64 left = length - (first - base * length);
    of_first = (u32)(left < kChunk ? left : kChunk);
  }
  PRIDE_BODY u64 at(u32 lane, u32 h) const {
    return base + (kLanes * h + lane >= of_first ? 1 : 0);
  }
};
PRIDE_BODY void store_integer(void* to, u32 width, u64 i, i32 value) {
  if (width == 1) {
    ((signed char*)to)[i] = (signed char)value;
  } else if (width == 2) {
    ((short*)to)[i] = (short)value;
  } else {
    ((i32*)to)[i] = value;
  }
}
PRIDE_BODY bool blend(const Levels& j, u64 at, Chunk<float>& u) {
  Chunk<float> m;
  fetch(m, j.m, at, j.n);
  fetch(u, j.g, at, j.n);
  return any_of(at, j.n, [&](u32 lane, u32 h) {
    const float blend = j.betas.beta1 * m(lane, h) + j.betas.one_minus_beta1 * u(lane, h);
    const float next = j.betas.beta2 * m(lane, h) + j.betas.one_minus_beta2 * u(lane, h);
    const bool finite = is_finite(blend) && is_finite(next);
    u(lane, h) = finite ? blend : 0.0f;
    if (finite) j.m[index_of(at, lane, h)] = next;
    return !finite;
  });
}
PRIDE_BODY bool add_error(const Levels& j, u64 at, Chunk<float>& u) {
  Chunk<float> e;
  fetch(e, j.e, at, j.n);
  return any_of(at, j.n, [&](u32 lane, u32 h) {
    const float sum = u(lane, h) + e(lane, h);
    const bool finite = is_finite(sum);
    u(lane, h) = finite ? sum : 0.0f;
    return !finite;
  });
}
PRIDE_BODY void levels(const Levels& j, u64 at) {
  Chunk<float> u;
  bool bad = blend(j, at, u);
  if (j.e != nullptr) bad |= add_error(j, at, u);
  const i32 largest = largest_of(j.lines.bits);
  const Scopes scopes(j.length, j.first + at);
  Chunk<u32> codes;
  fill(codes, 0u);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const float step = global(j.steps)[scopes.at(lane, h)];
    codes(lane, h) = code_of(u(lane, h), inverse_of(step), largest);
    const i32 level = (i32)codes(lane, h) - largest;
    if (j.e != nullptr) j.next[index_of(at, lane, h)] = u(lane, h) - (float)level * step;
    if (j.width != 0) store_integer(j.integers, j.width, index_of(at, lane, h), level);
  });
  if (j.width == 0) store_codes(j.lines, at, j.n, codes);
  if (bad) lower(j.fault.slot, j.fault.tensor);
}

// ---- Values to be averaged ----------------------------------------------------------------------

// write_values() and read_values() of codecs/levels.h with kLevels: 64 values share a scale.
struct WrittenValues {
  Values values;
  u16* scales;
  u64 n;
  Lines lines;
  Fault fault;
};
PRIDE_BODY void write_values(const WrittenValues& j, u64 at) {
  Chunk<float> x;
  fetch(x, j.values, at, j.n);
  const i32 largest = largest_of(j.lines.bits);
  Chunk<u32> codes;
  PRIDE_UNROLL
  for (u32 w = 0; w < kLoads / 2; ++w) {
    Lanes<float> most;
    each([&](u32 lane) {
      const float a = magnitude_of(x(lane, 2 * w)), b = magnitude_of(x(lane, 2 * w + 1));
      const float larger = a > b ? a : b;
      most[lane] = is_finite(a) && is_finite(b) ? larger : float_of(0x7F800000u);
    });
    const float size = largest_of(most);
    u16 scale = to_bfloat16(size < kZeroFloor ? 0.0f : size / (float)largest);
    const float step = from_bfloat16(scale);
    const bool bad = !is_finite(step * (float)largest);
    if (bad) scale = 0;
    const float inv = inverse_of(step);
    each([&](u32 lane) {
      codes(lane, 2 * w) = bad ? (u32)largest : code_of(x(lane, 2 * w), inv, largest);
      codes(lane, 2 * w + 1) = bad ? (u32)largest : code_of(x(lane, 2 * w + 1), inv, largest);
      if (lane == 0 && 64 * w < count_of(at, j.n)) j.scales[at / 64 + w] = scale;
    });
    if (bad) lower(j.fault.slot, j.fault.tensor);
  }
  store_codes(j.lines, at, j.n, codes);
}
struct ReadValues {
  float* values;
  const u16* scales;
  u64 n;  // a multiple of 64
  Lines lines;
};
PRIDE_BODY void read_values(const ReadValues& j, u64 at) {
  const u32 count = count_of(at, j.n);
  const i32 largest = largest_of(j.lines.bits);
  PRIDE_NO_UNROLL
  for (u32 w = 0; 64 * w < count; ++w) {
    const u64* from = j.lines.word(at / 64 + w);
    const u64 width = j.lines.width(at / 64 + w);
    Lanes<u32> low, high;
    each([&](u32 lane) { low[lane] = high[lane] = 0; });
    for (u32 b = 0; b < j.lines.bits; ++b, from += width) {
      const u64 word = *from;
      each([&](u32 lane) {
        low[lane] |= ((u32)word >> lane & 1) << b;
        high[lane] |= ((u32)(word >> 32) >> lane & 1) << b;
      });
    }
    const float scale = from_bfloat16(j.scales[at / 64 + w]);
    float* const to = j.values + at + 64 * w;
    each([&](u32 lane) {
      to[lane] = (float)((i32)low[lane] - largest) * scale;
      to[lane + kLanes] = (float)((i32)high[lane] - largest) * scale;
    });
  }
}

#define PRIDE_LEVEL_KERNELS                 \
  PRIDE_KERNEL(measure, Measure)            \
  PRIDE_KERNEL(levels, Levels)              \
  PRIDE_KERNEL(write_values, WrittenValues) \
  PRIDE_KERNEL(read_values, ReadValues)

}  // namespace pride::device
