// Counts of +1: for every coordinate of a shard a number from 0 to the number of votes, as bit
// planes or packed to base votes + 1. Layout and example: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/frame.h"
#include "kernels/radix.h"

namespace pride {

// kPacked: packed if that takes fewer bits than planes; this depends only on the votes.
enum class CountForm { kPlanes, kPacked };

// Layout of counts up to `votes`: packed words for the shard's whole groups (kernels/radix.h), and
// bit planes for the rest. The form kPlanes has no groups.
// REQUIRES: 1 <= votes <= kMaxWorld.
struct CountShape {
  CountShape(std::size_t n_words, int votes, CountForm form);
  kernels::Radix radix;  // no digits: no groups
  std::size_t n_groups;
  std::size_t packed_words;           // the shard's first words, which form groups
  std::size_t n_planes, plane_words;  // of the other words
};

template <typename Byte>
struct CountView : CountShape {
  CountView(Byte* frame, const Shard& shard, int votes, CountForm form)
      : CountShape(shard.n_words(), votes, form) {
    Parts<Byte> parts(frame);
    users = parts.template take<std::uint16_t>(shard.pieces.size());
    packed = parts.template take<std::uint32_t>(64 * n_groups);
    planes = parts.words(n_planes * plane_words);
    bytes = parts.end();
  }
  std::span<typename Parts<Byte>::template Like<std::uint16_t>> users;  // votes on each piece
  std::span<typename Parts<Byte>::template Like<std::uint32_t>> packed;
  Words<Byte> planes;
  std::size_t bytes = 0;
};

// Bits per count.
double count_bits(int votes, CountForm form);

// Refused: participation counts above the votes or inconsistent with this rank's tensors; counts
// of + above the participation.
FrameKind count_frames(int votes, CountForm form);

}  // namespace pride
