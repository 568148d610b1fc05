// Draws the arguments of random calls, each in memory of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/words.h"
#include "device/job_cases.h"
#include "kernels/calls.h"

namespace pride::device {

class JobMaker {
 public:
  JobMaker(JobMemory& memory, const JobOptions& options)
      : memory_(memory), options_(options), random_(options.seed) {}

  std::size_t n = 0;  // coordinates of the next job

  std::size_t below(std::size_t most) { return word() % most; }
  bool coin() { return below(2) == 0; }

  std::span<float> floats(std::size_t count) {
    std::vector<float> values(drawn(count));
    for (float& x : values) x = value();
    return {memory_.array<float>(values, count), count};
  }
  std::span<float> floats() { return floats(n); }
  std::span<float> poisoned() { return floats(); }
  std::span<float> scales(std::size_t count) { return floats(count); }
  std::span<BFloat16> scales_of_values(std::size_t count) {
    return {reinterpret_cast<BFloat16*>(halves(DType::kBFloat16, count)), count};
  }
  std::span<float> squares() {
    std::vector<float> values(drawn(n));
    for (float& x : values) x = std::abs(value());
    return {memory_.array<float>(values, n), n};
  }
  std::span<std::uint64_t> words(std::size_t count) {
    std::vector<std::uint64_t> values(drawn(count));
    for (std::uint64_t& x : values) x = std::uint64_t{word()} << 32 | word();
    return {memory_.array<std::uint64_t>(values, count), count};
  }
  std::span<std::uint64_t> bits() { return words(words_for(n)); }
  std::span<const std::uint32_t> packed(std::size_t count) {
    return {reinterpret_cast<std::uint32_t*>(words(count / 2).data()), count};
  }
  std::span<double> sums(std::size_t count) {
    return {reinterpret_cast<double*>(words(count).data()), count};
  }
  std::span<std::byte> integers(std::size_t bytes) {
    return std::as_writable_bytes(words((bytes + 7) / 8)).first(bytes);
  }
  kernels::LevelLines lines(std::size_t n_words) {
    const int bits = 2 + static_cast<int>(below(7));
    const std::size_t first = below(20), all = first + n_words + below(20);
    return {.shape = {all, bits},
            .first_word = first,
            .n_words = n_words,
            .words = words(all * static_cast<std::size_t>(bits))};
  }

  pride::Values values() {
    const auto any = static_cast<DType>(below(3)), dtype = dtype_or(any);
    const float factor = coin() ? 1.0f : 0.37f;
    const float* const scale = scale_word();
    if (dtype == DType::kFloat32) return {floats().data(), n, dtype, factor, scale};
    return {halves(dtype), n, dtype, factor, scale};
  }
  // In one of two jobs, one value is Inf or a NaN that no processor makes.
  pride::Values broken_values() {
    if (coin() || timed()) return values();
    std::vector<float> x(n);
    for (float& y : x) y = value();
    x[below(n)] =
        coin() ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(0xFFC01234U);
    return {memory_.array<float>(x), n, DType::kFloat32, 1.0f, scale_word()};
  }
  pride::Values feedback_values() { return below(4) == 0 ? pride::Values{} : broken_values(); }
  std::span<Float16> rounded() { return {reinterpret_cast<Float16*>(halves(DType::kFloat16)), n}; }
  // Floats, or the two halves of masters, whose upper half may not be the rounded master.
  Floats masters() {
    const auto any = static_cast<DType>(below(3));
    if (dtype_or(any) != DType::kBFloat16) return floats();
    std::uint16_t* const upper = halves(DType::kBFloat16);
    std::vector<std::uint16_t> lower(drawn(n));
    for (std::uint16_t& x : lower) x = static_cast<std::uint16_t>(word());
    return {upper, memory_.array<std::uint16_t>(lower, n), n};
  }
  Floats any_floats() { return masters(); }
  // Floats; if options_.dtype is not set, in one of two jobs bfloat16.
  Floats momenta() {
    if (coin() || options_.dtype) return floats();
    return {halves(DType::kBFloat16), nullptr, n};
  }

  FaultSlot fault() {
    const std::uint32_t none[1] = {kNoTensor};
    return {memory_.array<std::uint32_t>(none), word() % 100};
  }
  // Null, a guard without a fault, or one with a fault. Null in jobs that are timed.
  Guard guard() { return below(4) == 3 || timed() ? nullptr : set_guard(); }
  Guard set_guard() {
    const std::uint32_t fault[1] = {below(3) == 0 || timed() ? 7 : kNoTensor};
    return memory_.array<std::uint32_t>(fault);
  }
  bool timed() const { return options_.period != 0; }

 private:
  std::uint32_t word() { return static_cast<std::uint32_t>(random_()); }
  // In (-1, 1); one in eight may be a zero of either sign, one in 64 is a denormal.
  float value() {
    const std::uint32_t which = word();
    if (options_.zeros && which % 8 == 0) return which & 256 ? -0.0f : 0.0f;
    const float x = std::uniform_real_distribution<float>(-1, 1)(random_);
    return which % 64 == 1 ? x * 0x1p-140f : x;
  }
  DType dtype_or(DType any) const {
    return options_.dtype ? static_cast<DType>(*options_.dtype) : any;
  }
  // In one of four jobs, a factor in the jobs' memory.
  const float* scale_word() {
    const float factor[1] = {0.73f};
    return below(4) == 0 ? memory_.array<float>(factor) : nullptr;
  }
  std::uint16_t* halves(DType dtype) { return halves(dtype, n); }
  std::uint16_t* halves(DType dtype, std::size_t count) {
    std::vector<std::uint16_t> values(drawn(count));
    for (std::uint16_t& x : values) {
      x = dtype == DType::kBFloat16 ? to_bfloat16(value()) : to_float16(value());
    }
    return memory_.array<std::uint16_t>(values, count);
  }
  std::size_t drawn(std::size_t count) const {
    return timed() ? std::min(count, options_.period) : count;
  }

  JobMemory& memory_;
  const JobOptions options_;
  std::mt19937 random_;
};

}  // namespace pride::device
