// Device kernels for signs with a scale per block and error feedback. libpride embeds this file as
// text, between rule_bodies.h and level_bodies.h. The rules of bodies.h apply.
// SPDX-License-Identifier: Apache-2.0
//
// Contracts and bits are those of src/kernels: float32 and double, every operation rounded, no FMA.
#pragma once

#ifndef __CUDACC__
#include "device/lanes.h"
#endif

namespace pride::device {

constexpr u64 kScaleBlock = 4096;  // kernels::kScaleBlock

// ---- Sums ---------------------------------------------------------------------------------------

// kernels::sum_abs and sum_squares: sixteen partial sums. Lane i holds sum i; lanes from 16 on are
// not used.
struct Partial {
  Lanes<double> of;
  PRIDE_BODY Partial() {
    each([&](u32 lane) { of[lane] = 0; });
  }
  // Adds the coordinates in their order. Zeros do not change the sums.
  PRIDE_BODY void add(Chunk<float>& x, bool squares) {
    PRIDE_UNROLL
    for (u32 h = 0; h < kLoads; ++h) {
      Lanes<float> high = turned(x.of[h], 16);
      each([&](u32 lane) {
        const double low = (double)magnitude_of(x(lane, h));
        const double next = (double)magnitude_of(high[lane]);
        of[lane] += squares ? low * low : low;
        of[lane] += squares ? next * next : next;
      });
    }
  }
  PRIDE_BODY double sum() {
    PRIDE_UNROLL
    for (u32 width = 1; width < 16; width *= 2) {
      Lanes<double> other = turned(of, width);
      each([&](u32 lane) { of[lane] += other[lane]; });
    }
    return first_of(of);
  }
};

// ---- Blocks -------------------------------------------------------------------------------------

// The first coordinate of a job is coordinate `lead` of its block. The job's part of block k begins
// at begin_of(k). A kernel over blocks has n = kChunk times the number of blocks.
PRIDE_BODY u64 begin_of(u64 k, u64 lead) { return k == 0 ? 0 : k * kScaleBlock - lead; }
PRIDE_BODY u64 end_of(u64 k, u64 lead, u64 n) {
  const u64 end = (k + 1) * kScaleBlock - lead;
  return end < n ? end : n;
}

// Scales of a chunk's coordinates. A chunk overlaps at most two blocks, and these meet at a
// multiple of kLanes.
struct ChunkScales {
  u64 cut;  // coordinates from the chunk's start to the end of its first block
  float of[2];
  PRIDE_BODY ChunkScales(const float* scales, u64 lead, u64 at, u64 n) {
    const u64 k = (lead + at) / kScaleBlock;
    cut = (k + 1) * kScaleBlock - lead - at;
    const float* const from = global(scales) + k;
    of[0] = from[0];
    of[1] = of[0];
    if (at + cut < n && cut < kChunk) of[1] = from[1];
  }
  PRIDE_BODY float at(u32 h) const { return kLanes * h < cut ? of[0] : of[1]; }
};

// ---- Error feedback -----------------------------------------------------------------------------

// kernels::Feedback
struct Feedback {
  float keep, take, rate;
};

// The values from `at` on. Null data stays null.
PRIDE_BODY Values part_of(const Values& v, u64 at) {
  const u64 bytes = v.data == nullptr ? 0 : v.dtype == kFloat32 ? 4 * at : 2 * at;
  return {(const u8*)v.data + bytes, v.dtype, v.factor, v.scale};
}
// Null data counts as zeros.
PRIDE_BODY void fetch_or_zeros(Chunk<float>& out, const Values& in, u64 at, u64 n) {
  if (in.data == nullptr) {
    fill(out, 0.0f);
  } else {
    fetch(out, in, at, n);
  }
}

// kernels::feedback and compress; a warp runs a block
struct Compress {
  Values g;
  const float *m, *e;
  u64* bits;
  float* scales;
  u64 size, lead;
  u64 n;  // kChunk for each block
  Feedback f;
  Hash zeros;
  u32 squares;
  Fault fault;
};
PRIDE_BODY void compress(const Compress& j, u64 at) {
  const u64 k = at / kChunk, begin = begin_of(k, j.lead), end = end_of(k, j.lead, j.size);
  const Values g = part_of(j.g, begin);
  const Hash zeros = {j.zeros.key, j.zeros.first + begin, j.zeros.flip};
  const u32 n = (u32)(end - begin);
  Partial partial;
  PRIDE_NO_UNROLL
  for (u32 c = 0; c < n; c += (u32)kChunk) {
    Chunk<float> p, old;
    fetch(old, j.m + begin, c, n);
    fetch_or_zeros(p, g, c, n);
    for_chunk(c, n, [&](u32 lane, u32 h) {
      p(lane, h) = j.f.rate * (j.f.keep * old(lane, h) + j.f.take * p(lane, h));
    });
    fetch(old, j.e + begin, c, n);
    for_chunk(c, n, [&](u32 lane, u32 h) { p(lane, h) = p(lane, h) + old(lane, h); });
    partial.add(p, j.squares != 0);
    store_signs(j.bits + begin / 64, c, n, zeros, p);  // last use of p, to save registers
  }
  const double mean = partial.sum() / (double)n;
  const float scale = (float)(j.squares != 0 ? root(mean) : mean);
  each([&](u32 lane) {
    if (lane == 0) j.scales[k] = scale == scale ? scale : float_of(0x7FC00000u);
  });
  if (!is_finite(scale)) lower(j.fault.slot, j.fault.tensor);
}

// kernels::keep_feedback, with the scale of each block
struct KeepFeedback {
  Values g;
  const u64* bits;
  const float* scales;
  float *m, *e;
  u64 n, lead;
  Feedback f;
};
PRIDE_BODY void keep_feedback(const KeepFeedback& j, u64 at) {
  Chunk<float> g, m, e;
  Words bits;
  fetch(m, j.m, at, j.n);
  fetch(e, j.e, at, j.n);
  fetch_or_zeros(g, j.g, at, j.n);
  fetch(bits, j.bits, at, j.n);
  const ChunkScales scales(j.scales, j.lead, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const u64 i = index_of(at, lane, h);
    const float u = j.f.keep * m(lane, h) + j.f.take * g(lane, h);
    const float sent = bits.at(lane, h) ? scales.at(h) : -scales.at(h);
    j.e[i] = (j.f.rate * u + e(lane, h)) - sent;
    j.m[i] = u;
  });
}

// kernels::apply_signs, with the scale of each block as the rate
struct ApplyScaled {
  const u64* bits;
  const float* scales;
  Halves x;
  u64 n, lead;
  Decay decay;
};
PRIDE_BODY void apply_scaled(const ApplyScaled& j, u64 at) {
  Chunk<float> x;
  Words bits;
  fetch(bits, j.bits, at, j.n);
  fetch(x, j.x, at, j.n);
  const ChunkScales scales(j.scales, j.lead, at, j.n);
  for_chunk(at, j.n, [&](u32 lane, u32 h) {
    const float change = bits.at(lane, h) ? scales.at(h) : -scales.at(h);
    put(j.x, index_of(at, lane, h), j.decay.kept(x(lane, h), change) - change);
  });
}

#define PRIDE_SCALE_KERNELS                 \
  PRIDE_KERNEL(compress, Compress)          \
  PRIDE_KERNEL(keep_feedback, KeepFeedback) \
  PRIDE_KERNEL(apply_scaled, ApplyScaled)

}  // namespace pride::device
