// The host's calls for levels of few bits.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/level_calls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/log2.h"
#include "kernels/ternary.h"

namespace pride::kernels {
namespace {

constexpr std::size_t kScaled = 64;  // values that share a scale in WriteValues

Total total_of(std::span<const float> u, Size what) {
  if (what == Size::kLargest) return {double{max_abs(u)}};
  if (what == Size::kLogs) return {sum_abs(u), sum_log2(u)};
  return {what == Size::kSquares ? sum_squares(u) : sum_abs(u)};
}

Total total_of(const BlendOf& u, Size what, std::size_t at, std::size_t n) {
  alignas(64) std::array<float, kScaleBlock> widened, room;
  const auto x = std::span(room).first(n);
  blend_only(u.g.read(at, n, widened), u.blend, u.m.subspan(at, n), x);
  if (!u.e.empty()) add(u.e.subspan(at, n), x);
  return total_of(x, what);
}

float inverse_of(float step) { return step == 0 ? 0.0f : 1.0f / step; }

void store_integers(std::span<const std::int8_t> q, std::size_t at, const LevelLines& lines) {
  const auto store_as = [&]<typename T>(T) {
    std::ranges::copy(q, reinterpret_cast<T*>(lines.integers.data()) + at);
  };
  if (lines.width == 1) return store_as(std::int8_t{});
  if (lines.width == 2) return store_as(std::int16_t{});
  store_as(std::int32_t{});
}

// x = the blend, with 0 for what is not finite. Returns whether all of it is.
bool blend_of(const BlendOf& u, std::span<const float> g, std::size_t at, std::span<float> m,
              std::span<float> x) {
  const bool finite = lion_blend(g, u.blend, m, x) == kAllFinite;
  if (u.e.empty()) return finite;
  add(u.e.subspan(at, x.size()), x);
  if (first_non_finite(x) == kAllFinite) return finite;
  std::ranges::replace_if(
      x, [](float y) { return !std::isfinite(y); }, 0.0f);
  return false;
}

}  // namespace

void Total::add(Size what, const Total& part) {
  size = what == Size::kLargest ? std::max(size, part.size) : size + part.size;
  log2 += part.log2;
}

float Total::magnitude(Size what, std::size_t n) const {
  if (n == 0) return 0;
  const auto count = static_cast<double>(n);
  double whole = what == Size::kSum || what == Size::kSquares ? size / count : size;
  if (what == Size::kSquares) whole = std::sqrt(whole);
  if (what == Size::kLogs && size > 0 && std::isfinite(size)) whole = exp2_of(log2 / count);
  const auto c = static_cast<float>(whole);
  return std::isfinite(c) ? c : 0;
}

float level_step(Size what, float magnitude, int largest) {
  if (magnitude < kZeroFloor) return 0;
  const float twice = std::min(2.0f * magnitude, std::numeric_limits<float>::max());
  return (what == Size::kLargest ? magnitude : twice) / static_cast<float>(largest);
}

void Measure::run() const noexcept {
  BlockScales<double>{sums}.for_blocks(u.m.size(),
                                       [&](std::size_t k, std::size_t at, std::size_t n) {
                                         const Total total = total_of(u, size, at, n);
                                         sums[k] = total.size;
                                         if (!logs.empty()) logs[k] = total.log2;
                                       });
}

void MeasureBlocks::run() const noexcept {
  steps.for_blocks(u.m.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
    const float magnitude = total_of(u, size, at, n).magnitude(size, n);
    steps.of[k] = level_step(size, magnitude, largest);
  });
}

// In parts of one block and one step.
void Quantise::run() const noexcept {
  alignas(64) std::array<float, kScaleBlock> widened, room;
  std::array<std::int8_t, kScaleBlock> levels;
  const int largest = largest_level(lines.shape.bits);
  for (std::size_t at = 0, n = 0; at < m.size(); at += n) {
    const std::size_t in_step = (steps.first + at) % steps.length;
    n = std::min({m.size() - at, kScaleBlock, steps.length - in_step});
    const auto x = std::span(room).first(n);
    const auto q = std::span(levels).first(n);
    const auto g = u.g.read(at, n, widened);
    float step = size ? 0 : steps.of[(steps.first + at) / steps.length];
    bool finite = true;
    if (u.e.empty() && !size && !random) {
      finite =
          lion_quantise(g, u.blend, inverse_of(step), largest, m.subspan(at, n), q) == kAllFinite;
    } else {
      finite = blend_of(u, g, at, m.subspan(at, n), x);
      if (size) step = level_step(*size, total_of(x, *size).magnitude(*size, n), largest);
      const float inv = inverse_of(step);
      if (random) {
        const auto r = std::span(widened).first(n);  // g is no longer needed
        uniforms({random->seed, random->step, random->rank, random->first_coord + at}, r);
        quantise(x, inv, largest, r, q);
      } else {
        quantise(x, inv, largest, q);
      }
    }
    if (!finite) fault.note();
    if (!u.e.empty()) keep_level_error(x, q, step, next.subspan(at, n));
    if (lines.width == 0) pack_levels(q, lines.shape, lines.first_word + at / 64, lines.words);
    if (lines.width != 0) store_integers(q, at, lines);
  }
}

void WriteValues::run() const noexcept {
  const int largest = largest_level(lines.shape.bits);
  constexpr std::size_t kUnit = kRunWords * kScaled;  // the fastest one of packing
  alignas(64) std::array<std::int8_t, kUnit> levels;
  alignas(64) std::array<float, kUnit> widened;
  std::array<float, kRunWords> steps;
  for (std::size_t first = 0; first < scales.size(); first += kRunWords) {
    const auto some = scales.subspan(first, std::min(kRunWords, scales.size() - first));
    const std::size_t at = kScaled * first, n = std::min(kUnit, values.n - at);
    const auto x = values.read(at, n, widened);
    const auto block = [&](std::size_t k) {
      return x.subspan(kScaled * k, std::min(kScaled, n - kScaled * k));
    };
    const auto of_some = std::span(steps).first(some.size());
    for (std::size_t k = 0; k < some.size(); ++k) {
      // below the floor the reciprocal might not be finite
      const float most = max_abs(block(k));
      steps[k] = most < kZeroFloor ? 0.0f : most / static_cast<float>(largest);
    }
    to_bf16(of_some, some);
    to_float(some, of_some);
    const auto q = std::span(levels).first(kScaled * some.size());
    std::ranges::fill(q.subspan(n), std::int8_t{0});
    for (std::size_t k = 0; k < some.size(); ++k) {
      const auto of_block = q.subspan(kScaled * k, block(k).size());
      if (std::isfinite(steps[k] * static_cast<float>(largest)) &&
          first_non_finite(block(k)) == kAllFinite) {
        quantise(block(k), inverse_of(steps[k]), largest, of_block);
        continue;
      }
      fault.note();
      some[k] = BFloat16{};
      std::ranges::fill(of_block, std::int8_t{0});
    }
    pack_levels(q, lines.shape, lines.first_word + first, lines.words);
  }
}

void ReadValues::run() const noexcept {
  alignas(64) std::array<std::int8_t, kRunWords * kScaled> levels;
  std::array<float, kRunWords> steps;
  for (std::size_t first = 0; first < scales.size(); first += kRunWords) {
    const auto some = scales.subspan(first, std::min(kRunWords, scales.size() - first));
    const auto q = std::span(levels).first(kScaled * some.size());
    unpack_levels(lines, shape, first_word + first, q);
    to_float(some, std::span(steps).first(some.size()));
    for (std::size_t k = 0; k < some.size(); ++k) {
      levels_to_floats(q.subspan(kScaled * k, kScaled), steps[k],
                       values.subspan(kScaled * (first + k), kScaled));
    }
  }
}

}  // namespace pride::kernels
