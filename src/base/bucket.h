// Bucket: a range of the flat coordinates that is encoded, exchanged and applied as one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/words.h"
#include "pride/layout.h"

namespace pride {

// The part of one tensor in one shard of one bucket. [begin, end) are flat coordinates, without
// padding; begin is a multiple of 64. Bit k of a shard's unused bits belongs to its piece k.
struct Piece {
  std::size_t tensor = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  int group = 0;
  std::size_t first_word = 0;  // index of its first word (64 coordinates) within the shard
  std::uint64_t to_whole = 0;  // its tensor's TensorSlot::to_whole

  std::size_t n() const noexcept { return end - begin; }
  std::size_t n_words() const noexcept { return words_for(n()); }
  // Flat coordinate `at` as a number in the whole model, which keys its random bits.
  std::uint64_t in_whole(std::size_t at) const noexcept { return at + to_whole; }
};

// One rank's part of a bucket: that rank is the server of these coordinates.
struct Shard {
  std::size_t begin = 0;  // flat coordinates, multiples of 64, padding included
  std::size_t end = 0;
  std::vector<Piece> pieces;  // ascending; their words, concatenated, are the shard's words

  std::size_t size() const noexcept { return end - begin; }
  std::size_t n_words() const noexcept { return size() / 64; }
};

struct Bucket {
  int index = 0;
  std::size_t begin = 0;  // flat coordinates, multiples of 64, padding included
  std::size_t end = 0;
  std::vector<Shard> shards;  // one per rank; they cover [begin, end) in rank order

  std::size_t size() const noexcept { return end - begin; }
};

// Cuts the flat coordinates into buckets of about `target_coords`, numbered in the order in which
// backward completes them: bucket 0 holds the end of the layout. Buckets also end at `cuts`,
// ascending starts of tensors. All other cuts except the end of the layout are at multiples of
// `alignment`, and shards of a bucket differ in size by at most one such block.
// REQUIRES: target_coords >= 1, world >= 1, alignment a multiple of 64.
std::vector<Bucket> make_buckets(const Layout& layout, std::size_t target_coords, int world,
                                 std::size_t alignment = kAlignment,
                                 std::span<const std::size_t> cuts = {});

}  // namespace pride
