// LevelKernels: device kernels of the methods with levels of few bits. On the host these methods
// have their own loops, over blocks in the L1 cache.
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
  // A measure of u: the sum of magnitudes, the sum of squares, or the largest magnitude.
  enum class Size : std::uint32_t { kSum, kSquares, kLargest };

  // One sum per kScaleBlock coordinates; the last one covers the rest.
  virtual void measure(const BlendOf& u, Size size, std::span<double> sums) = 0;
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

    // For kernels that only read the lines.
    static Lines read(kernels::LevelShape shape, std::size_t first,
                      std::span<const std::uint64_t> words) {
      return {.shape = shape,
              .first_word = first,
              .words = {const_cast<std::uint64_t*>(words.data()), words.size()}};
    }
  };
  // Sizes of levels: that of coordinate i is of[(first + i) / length]. REQUIRES: `length` is
  // kScaleBlock, or there is one.
  struct Steps {
    std::span<const float> of;
    std::size_t length = 1, first = 0;
  };
  // Rounds u to levels;  m = beta2*m + (1-beta2)*g;  if u has an e:  next = u - level*step.
  virtual void quantise(const BlendOf& u, const Steps& steps, std::span<float> m,
                        std::span<float> next, const Lines& lines, FaultSlot fault) = 0;

  // write_values() and read_values() of codecs/levels.h with kLevels. A scale at which the largest
  // level is not finite is a fault.
  virtual void write_values(std::span<const float> values, std::span<float> scales,
                            const Lines& lines, FaultSlot fault) = 0;
  virtual void read_values(std::span<const float> scales, const Lines& lines,
                           std::span<float> values) = 0;
};

}  // namespace pride
