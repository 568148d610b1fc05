// Counts of +1 (down): for every coordinate of a shard a number from 0 to N, as bit planes or
// packed to base N + 1. Layout and example: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/frame.h"
#include "codecs/payload_check.h"
#include "kernels/radix.h"
#include "pride/bucket.h"

namespace pride {

// kPacked means packed where that takes fewer bits than planes, which depends on N alone.
enum class CountForm { kPlanes, kPacked };

// Bits that one count takes, and the frame's codec.  REQUIRES: 1 <= world <= kMaxWorld.
double count_bits(int world, CountForm form);
Codec count_codec(int world, CountForm form);

// Number of present ranks, uint16, for each piece; then the counts: packed words of as many whole
// groups (kernels/radix.h) as the shard has, and bit planes of what is left of it. The form kPlanes
// has no groups.
struct CountFrame {
  CountFrame(const Shard& shard, int world, CountForm form);

  kernels::Radix radix;  // of the groups; no digits: none
  std::size_t n_groups;
  std::size_t packed_words;           // of the shard's words, those in groups: the first ones
  std::size_t n_planes, plane_words;  // of the others
  std::size_t present_at, packed_at, planes_at;  // from the start of the frame
  std::size_t bytes;                             // header included
};

// One piece, flat coordinates [begin, end), and how many ranks contributed to it.
struct CountRange {
  std::size_t begin = 0, end = 0;
  std::size_t piece = 0;       // of the shard
  std::size_t first_word = 0;  // of the shard
  int present = 0;

  std::size_t n_words() const noexcept { return (end - begin + 63) / 64; }
};

// Ascending, whole shard. Reads the numbers of present ranks only.
// REQUIRES: frame.size() >= at.packed_at.
std::vector<CountRange> count_ranges(std::span<const std::byte> frame, const Shard& shard,
                                     const CountFrame& at);

// Checks a payload: its size, no more ranks present than there are, and no count above the number
// of present ranks. Reads only. Throws CommError.
void check_counts(const ReceivedFrame& f, int world, CountForm form);

}  // namespace pride
