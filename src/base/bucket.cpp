// Cuts a layout into buckets, shards and pieces.
// SPDX-License-Identifier: Apache-2.0
#include "base/bucket.h"

#include <algorithm>

#include "pride/error.h"

namespace pride {
namespace {

// The pieces of tensors in [begin, end), both multiples of 64.
std::vector<Piece> pieces_between(const Layout& layout, std::size_t begin, std::size_t end) {
  std::vector<Piece> pieces;
  const auto& slots = layout.tensors();
  // the last tensor that starts at or before `begin` is the first that can reach into the range
  auto slot = std::upper_bound(slots.begin(), slots.end(), begin,
                               [](std::size_t at, const TensorSlot& s) { return at < s.offset; });
  if (slot != slots.begin()) --slot;
  for (; slot != slots.end() && slot->offset < end; ++slot) {
    const std::size_t from = std::max(begin, slot->offset);
    const std::size_t to = std::min(end, slot->offset + slot->n);
    if (from >= to) continue;
    const auto tensor = static_cast<std::size_t>(slot - slots.begin());
    pieces.push_back({tensor, from, to, slot->spec.group, (from - begin) / 64});
  }
  return pieces;
}

}  // namespace

std::vector<Bucket> make_buckets(const Layout& layout, std::size_t target_coords, int world,
                                 std::size_t alignment) {
  PRIDE_CHECK(target_coords >= 1, "make_buckets: a bucket needs at least 1 coordinate");
  PRIDE_CHECK(world >= 1, "make_buckets: world size ", world);
  PRIDE_CHECK(alignment >= kAlignment && alignment % kAlignment == 0, "make_buckets: alignment ",
              alignment, ", must be a multiple of ", kAlignment);
  const auto blocks_for = [alignment](std::size_t n) { return (n + alignment - 1) / alignment; };
  const std::size_t blocks = blocks_for(layout.flat_size());
  const std::size_t target_blocks =
      std::max<std::size_t>(1, blocks_for(std::min(target_coords, layout.flat_size())));
  const std::size_t n_buckets = (blocks + target_blocks - 1) / target_blocks;
  // the last block of the layout may be partial
  const auto at = [&](std::size_t block) {
    return std::min(block * alignment, layout.flat_size());
  };
  const auto ranks = static_cast<std::size_t>(world);

  std::vector<Bucket> buckets(n_buckets);
  for (std::size_t b = 0; b < n_buckets; ++b) {
    // even cuts; bucket 0 is the last part of the layout
    const std::size_t part = n_buckets - 1 - b;
    const std::size_t first = blocks * part / n_buckets;
    const std::size_t last = blocks * (part + 1) / n_buckets;
    Bucket& bucket = buckets[b];
    bucket.index = static_cast<int>(b);
    bucket.begin = at(first);
    bucket.end = at(last);
    for (std::size_t r = 0; r < ranks; ++r) {
      Shard shard;
      shard.begin = at(first + (last - first) * r / ranks);
      shard.end = at(first + (last - first) * (r + 1) / ranks);
      shard.pieces = pieces_between(layout, shard.begin, shard.end);
      bucket.shards.push_back(std::move(shard));
    }
  }
  return buckets;
}

}  // namespace pride
