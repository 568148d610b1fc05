// The host's calls for levels of few bits.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/level_calls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ternary.h"

namespace pride::kernels {
namespace {

constexpr std::size_t kScaled = 64;  // values that share a scale in WriteValues

double size_of_blend(const BlendOf& u, Size size, std::size_t at, std::size_t n) {
  alignas(64) std::array<float, kScaleBlock> widened, room;
  const auto x = std::span(room).first(n);
  blend_only(u.g.read(at, n, widened), u.blend, u.m.subspan(at, n), x);
  if (!u.e.empty()) add(u.e.subspan(at, n), x);
  if (size == Size::kLargest) return double{max_abs(x)};
  return size == Size::kSquares ? sum_squares(x) : sum_abs(x);
}

float inverse_of(float step) { return step == 0 ? 0.0f : 1.0f / step; }

void store_integers(std::span<const std::int8_t> q, std::size_t at, const LevelLines& lines) {
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::int32_t wide = q[i];
    const auto narrow = static_cast<std::int16_t>(wide);
    std::byte* const to = lines.integers.data() + (at + i) * lines.width;
    if (lines.width == 1) std::memcpy(to, &q[i], 1);
    if (lines.width == 2) std::memcpy(to, &narrow, 2);
    if (lines.width == 4) std::memcpy(to, &wide, 4);
  }
}

}  // namespace

void Measure::run() const noexcept {
  BlockScales<double>{sums}.for_blocks(u.m.size(),
                                       [&](std::size_t k, std::size_t at, std::size_t n) {
                                         sums[k] = size_of_blend(u, size, at, n);
                                       });
}

void MeasureBlocks::run() const noexcept {
  steps.for_blocks(u.m.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
    double whole = size_of_blend(u, size, at, n);
    if (size != Size::kLargest) whole /= static_cast<double>(n);
    const auto c = static_cast<float>(size == Size::kSquares ? std::sqrt(whole) : whole);
    const float twice = std::min(2.0f * c, std::numeric_limits<float>::max());
    const float top = size == Size::kLargest ? c : twice;
    const bool zero = !std::isfinite(c) || c < kZeroFloor;
    steps.of[k] = zero ? 0.0f : top / static_cast<float>(largest);
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
    if (lion_blend(u.g.read(at, n, widened), u.blend, m.subspan(at, n), x) != kAllFinite) {
      fault.note();
    }
    if (!u.e.empty()) add(u.e.subspan(at, n), x);
    for (float& y : x) {
      if (std::isfinite(y)) continue;
      y = 0;
      fault.note();
    }
    const float step = steps.of[(steps.first + at) / steps.length];
    quantise(x, inverse_of(step), largest, q);
    if (!u.e.empty()) keep_level_error(x, q, step, next.subspan(at, n));
    if (lines.width == 0) pack_levels(q, lines.shape, lines.first_word + at / 64, lines.words);
    if (lines.width != 0) store_integers(q, at, lines);
  }
}

void WriteValues::run() const noexcept {
  const int largest = largest_level(lines.shape.bits);
  std::array<std::int8_t, kRunWords * kScaled> levels;  // the fastest unit of packing
  for (std::size_t first = 0; first < scales.size(); first += kRunWords) {
    const auto some = scales.subspan(first, std::min(kRunWords, scales.size() - first));
    const auto q = std::span(levels).first(kScaled * some.size());
    for (std::size_t k = 0; k < some.size(); ++k) {
      const auto block = values.subspan(kScaled * (first + k), kScaled);
      // below the floor the reciprocal might not be finite
      const float most = max_abs(block);
      some[k] = most < kZeroFloor ? 0.0f : most / static_cast<float>(largest);
      quantise(block, inverse_of(some[k]), largest, q.subspan(kScaled * k, kScaled));
      if (!std::isfinite(some[k] * static_cast<float>(largest))) fault.note();
    }
    pack_levels(q, lines.shape, lines.first_word + first, lines.words);
  }
}

void ReadValues::run() const noexcept {
  std::array<std::int8_t, kRunWords * kScaled> levels;
  for (std::size_t first = 0; first < scales.size(); first += kRunWords) {
    const auto some = scales.subspan(first, std::min(kRunWords, scales.size() - first));
    const auto q = std::span(levels).first(kScaled * some.size());
    unpack_levels(lines, shape, first_word + first, q);
    for (std::size_t k = 0; k < some.size(); ++k) {
      levels_to_floats(q.subspan(kScaled * k, kScaled), some[k],
                       values.subspan(kScaled * (first + k), kScaled));
    }
  }
}

}  // namespace pride::kernels
