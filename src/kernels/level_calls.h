// Calls of the kernels of methods with levels of few bits; the rules of calls.h apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/step.h"
#include "kernels/fault.h"
#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/scaled_signs.h"

namespace pride::kernels {

// The blend u = beta1*m + (1-beta1)*g (+ e); e may be empty.
struct BlendOf {
  Values g;
  Blend blend;
  std::span<const float> m, e;
};
// A measure of u: the sum of magnitudes, the sum of squares, the largest magnitude; or, on the host
// only, the sums of magnitudes and of their logarithms.
enum class Size : std::uint32_t { kSum, kSquares, kLargest, kLogs };

// The measure of a scope, the coordinates that share a scale.
struct Total {
  double size = 0, log2 = 0;

  void add(Size what, const Total& part);
  // The mean, the root mean square, the largest or the geometric mean of n magnitudes. The last is
  // 2^mean(log2(|u| + 1e-12)), but 0 where all u are 0: zeros count as 1e-12. 0 if n is 0 or values
  // are not finite.
  float magnitude(Size what, std::size_t n) const;
};
// The size of a level at this magnitude: top / largest, where top is the largest magnitude, or
// twice the mean. 0 below kZeroFloor: then all levels are 0.
float level_step(Size what, float magnitude, int largest);

// One sum per kScaleBlock coordinates; the last one covers the rest.
struct Measure {
  BlendOf u;
  Size size;
  std::span<double> sums, logs = {};  // logs: for kLogs
  void run() const noexcept;
};
// The size of a level for each block.
struct MeasureBlocks {
  BlendOf u;
  Size size;
  int largest;
  BlockScales<float> steps;
  void run() const noexcept;
};

// The levels of one tensor in the lines of a shard: n_words words from `first_word` on. Or as
// integers of `width` bytes.
struct LevelLines {
  LevelShape shape = {};
  std::size_t first_word = 0, n_words = 0;
  std::span<std::uint64_t> words = {};  // of the shard
  std::span<std::byte> integers = {};
  std::size_t width = 0;
};
// Sizes of levels: that of coordinate i is of[(first + i) / length]. REQUIRES: `length` is
// kScaleBlock, or there is one.
struct LevelSteps {
  std::span<const float> of;
  std::size_t length = 1, first = 0;
};
// Rounds u to levels;  m = beta2*m + (1-beta2)*g;  if u has an e:  next = u - level*step. On the
// host only: with `size`, measures u itself, as MeasureBlocks, and steps.of may be empty; with
// `random`, rounds stochastically.
struct Quantise {
  BlendOf u;
  LevelSteps steps;
  std::span<float> m, next;
  LevelLines lines;
  FaultSlot fault;
  std::optional<Size> size = {};
  std::optional<PhiloxKey> random = {};
  void run() const noexcept;
};

// Values in levels: 64 share a scale, which is their largest magnitude / the largest level, rounded
// to bfloat16. If a value or the largest level is not finite, that is a fault, and all 64 have
// scale and level 0. The last 64 may be fewer: levels after the last value are 0.
struct WriteValues {
  Values values;
  std::span<BFloat16> scales;
  LevelLines lines;
  FaultSlot fault;
  void run() const noexcept;
};
struct ReadValues {
  std::span<const BFloat16> scales;
  std::span<const std::uint64_t> lines;  // of the shard
  LevelShape shape;
  std::size_t first_word;
  std::span<float> values;
  void run() const noexcept;
};

}  // namespace pride::kernels
