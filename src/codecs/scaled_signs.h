// Scaled signs: one bit a coordinate and one float a block. The same frame goes up and down.
// Layout and example: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/payload_check.h"
#include "pride/bucket.h"

namespace pride {

// A scale covers the part of one tensor in one aligned range of this many flat coordinates. Shards
// are cut at multiples of it, so that the blocks do not depend on buckets or ranks.
inline constexpr std::size_t kScaleBlock = 4096;

// One block of a shard: flat coordinates [begin, end), padding left out; block k of a shard has the
// scale k of its frames.
struct ScaleBlock {
  std::size_t begin = 0, end = 0;
  std::size_t piece = 0;       // of the shard
  std::size_t first_word = 0;  // of the shard's sign words

  std::size_t n() const noexcept { return end - begin; }
  std::size_t n_words() const noexcept { return (n() + 63) / 64; }
};

// Ascending. REQUIRES: the shard begins at a multiple of kScaleBlock, or is empty.
std::vector<ScaleBlock> scale_blocks(const Shard& shard);

// Frame of scaled signs: absent (down: nobody) bits of the pieces, one scale a block, sign words.
struct ScaledSignFrame {
  explicit ScaledSignFrame(const Shard& shard);
  std::size_t absent_words, n_scales, sign_words;
  std::size_t absent_at, scales_at, signs_at;  // from the start of the frame
  std::size_t bytes;                           // header included
};

// Typed access to the scales. REQUIRES: frame.size() == at.bytes.
std::span<float> scales_of(std::span<std::byte> frame, const ScaledSignFrame& at);
std::span<const float> scales_of(std::span<const std::byte> frame, const ScaledSignFrame& at);

// Sets the parts that hold less than their bytes to zero: absent bits and the scales' padding.
void clear_scaled_signs(std::span<std::byte> frame, const ScaledSignFrame& at);

// Checks a payload: its size, scales that are finite and not negative, and no bit set where no
// piece, block or coordinate is. Reads only. Throws CommError.
void check_scaled_signs(const ReceivedFrame& f);

}  // namespace pride
