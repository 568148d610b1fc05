// LevelKernels: what methods with levels of few bits run on a device. On the host they have loops
// of their own, over blocks in the L1 cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/step.h"
#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "kernels/space.h"

namespace pride {

// All spans lie on the device.
class LevelKernels {
 public:
  virtual ~LevelKernels() = default;

  // The blend u = beta1*m + (1-beta1)*g (+ e); e may be empty.
  struct BlendOf {
    Values g;
    kernels::Blend blend;
    std::span<const float> m, e;
  };
  // Of magnitudes of u: their sum, the sum of their squares, or the largest.
  enum class Size : std::uint32_t { kSum, kSquares, kLargest };

  // sums: for each row of `row` coordinates one for each kScaleBlock of them, the last with the
  // rest. REQUIRES: whole rows.
  virtual void measure_rows(const BlendOf& u, Size size, std::size_t row,
                            std::span<double> sums) = 0;
  // The size of a level for each block, by Quantiser's rules.
  virtual void measure_blocks(const BlendOf& u, Size size, int largest,
                              kernels::BlockScales<float> steps) = 0;

  // Levels in the lines of a shard, from word `first_word` on; or as integers of `width` bytes.
  struct Lines {
    kernels::LevelShape shape = {};
    std::size_t first_word = 0;
    std::span<std::uint64_t> words = {};
    std::span<std::byte> integers = {};
    std::size_t width = 0;

    // Of kernels that only read them.
    static Lines read(kernels::LevelShape shape, std::size_t first,
                      std::span<const std::uint64_t> words) {
      return {.shape = shape,
              .first_word = first,
              .words = {const_cast<std::uint64_t*>(words.data()), words.size()}};
    }
  };
  // The size of a level of coordinate i is number (first + i) / row.
  struct Steps {
    std::span<const float> of;
    std::size_t row = 1, first = 0;
  };
  // Levels of u, to the nearest;  m = beta2*m + (1-beta2)*g;  with e in u:  next = u - level*step.
  virtual void quantise(const BlendOf& u, const Steps& steps, std::span<float> m,
                        std::span<float> next, const Lines& lines, FaultSlot fault) = 0;

  // write_values() and read_values() of codecs/levels.h, in levels. A scale at which the largest
  // level is not finite is a fault.
  virtual void write_values(std::span<const float> values, std::span<float> scales,
                            const Lines& lines, FaultSlot fault) = 0;
  virtual void read_values(std::span<const float> scales, const Lines& lines,
                           std::span<float> values) = 0;

  // Of coordinates first, first + stride, ...: u; and afterwards m and the level sent, in lines, as
  // integers, with one bit as a sign, or with no bits kNoLevel.
  struct Samples {
    std::size_t first = 0, stride = 1;
  };
  virtual void sample_blends(const BlendOf& u, Samples at, std::span<float> out) = 0;
  virtual void sample_levels(std::span<const float> m, const Lines& lines, Samples at,
                             std::span<float> out, std::span<std::int8_t> q) = 0;
};

}  // namespace pride
