// Random members of the jobs of a device's kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/job_cases.h"

namespace pride::device {

// Draws the members of jobs.
class JobMaker {
 public:
  JobMaker(JobMemory& memory, const JobOptions& options)
      : memory_(memory), options_(options), random_(options.seed) {}

  std::size_t n = 0;  // coordinates of the next job

  // In (-1, 1); one in eight may be a zero of either sign, one in 64 is a denormal.
  float value() {
    const std::uint32_t which = word();
    if (options_.zeros && which % 8 == 0) return which & 256 ? -0.0f : 0.0f;
    const float x = std::uniform_real_distribution<float>(-1, 1)(random_);
    return which % 64 == 1 ? x * 0x1p-140f : x;
  }
  std::uint32_t word() { return static_cast<std::uint32_t>(random_()); }
  u64 word64() { return u64{word()} << 32 | word(); }

  float* floats(std::size_t count) {
    std::vector<float> values(drawn(count));
    for (float& x : values) x = value();
    return memory_.array<float>(values, count);
  }
  float* floats() { return floats(n); }
  float* positive_floats() {
    std::vector<float> values(drawn(n));
    for (float& x : values) x = std::abs(value());
    return memory_.array<float>(values, n);
  }
  u64* words(std::size_t count) {
    std::vector<u64> values(drawn(count));
    for (u64& x : values) x = word64();
    return memory_.array<u64>(values, count);
  }
  u64* bits() { return words((n + 63) / 64); }

  Values values() {
    const u32 any = word() % 3, dtype = options_.dtype.value_or(any);
    const float factor = word() % 2 == 0 ? 1.0f : 0.37f;
    const float* const scale = scale_word();
    if (dtype == kFloat32) return {floats(), dtype, factor, scale};
    return {halves(dtype), dtype, factor, scale};
  }
  // In one of four jobs, a factor in the jobs' memory.
  const float* scale_word() {
    const float factor[1] = {0.73f};
    return word() % 4 == 0 ? memory_.array<float>(factor) : nullptr;
  }
  u16* halves(u32 dtype) {
    std::vector<u16> values(drawn(n));
    for (u16& x : values) x = dtype == kBFloat16 ? to_bfloat16(value()) : to_float16(value());
    return memory_.array<u16>(values, n);
  }
  // Floats, or the two halves of masters, whose upper half may not be the rounded master.
  Halves parameters() {
    const u32 any = word() % 3, dtype = options_.dtype.value_or(any);
    if (dtype != kBFloat16) return {floats(), nullptr};
    u16* const upper = halves(kBFloat16);
    return {upper, random_halves()};
  }
  // Floats; if options_.dtype is not set, in one of two jobs bfloat16.
  Stored momenta() {
    if (word() % 2 == 0 || options_.dtype) return {floats(), 0};
    return {halves(kBFloat16), 1};
  }
  u16* random_halves() {
    std::vector<u16> values(drawn(n));
    for (u16& x : values) x = static_cast<u16>(word());
    return memory_.array<u16>(values, n);
  }
  Fault fault() {
    const std::uint32_t none[1] = {kNoTensor};
    return {memory_.array<std::uint32_t>(none), word() % 100};
  }
  // Null, a guard without a fault, or one with a fault. Null in jobs that are timed.
  const u32* guard() {
    const u32 kind = word() % 4;
    const std::uint32_t fault[1] = {kind == 0 ? 7 : kNoTensor};
    return kind == 3 || options_.period != 0 ? nullptr : memory_.array<std::uint32_t>(fault);
  }
  // In one of two jobs, one value is Inf or a NaN that no processor makes.
  Values broken_values() {
    if (word() % 2 == 0 || options_.period != 0) return values();
    std::vector<float> x(n);
    for (float& y : x) y = value();
    x[word() % n] = word() % 2 == 0 ? std::numeric_limits<float>::infinity()
                                    : std::bit_cast<float>(0xFFC01234U);
    return {memory_.array<float>(x), kFloat32, 1.0f, scale_word()};
  }
  Betas betas() { return {0.9f, 0.1f, 0.99f, 0.01f}; }
  Rate rate() { return {0.999f, 0.0137f}; }
  // Cells of a few values each.
  Cells cells() { return {parameters(), 7.3f, word() % 2 == 0 ? 0 : ~u32{0}}; }
  Hash hash() { return {word64(), word(), word() % 2 == 0 ? 0 : ~u64{0}}; }

 private:
  std::size_t drawn(std::size_t count) const {
    return options_.period == 0 ? count : std::min(count, options_.period);
  }

  JobMemory& memory_;
  const JobOptions options_;
  std::mt19937 random_;
};

}  // namespace pride::device
