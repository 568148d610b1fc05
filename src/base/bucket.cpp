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
    pieces.push_back({tensor, from, to, slot->spec.group, (from - begin) / 64, slot->to_whole});
  }
  return pieces;
}

// Cuts [begin, end) evenly into buckets and appends them, the last one first.
void add_buckets(const Layout& layout, std::size_t begin, std::size_t end,
                 std::size_t target_blocks, std::size_t ranks, std::size_t alignment,
                 std::vector<Bucket>& buckets) {
  if (begin == end) return;
  // the first and the last block may be partial
  const std::size_t base = begin / alignment, blocks = (end + alignment - 1) / alignment - base;
  const std::size_t parts = (blocks + target_blocks - 1) / target_blocks;
  const auto at = [&](std::size_t block) {
    return std::clamp((base + block) * alignment, begin, end);
  };
  for (std::size_t part = parts; part-- > 0;) {
    const std::size_t first = blocks * part / parts, last = blocks * (part + 1) / parts;
    Bucket bucket{.index = static_cast<int>(buckets.size()),
                  .begin = at(first),
                  .end = at(last),
                  .shards = {}};
    for (std::size_t r = 0; r < ranks; ++r) {
      Shard shard;
      shard.begin = at(first + (last - first) * r / ranks);
      shard.end = at(first + (last - first) * (r + 1) / ranks);
      shard.pieces = pieces_between(layout, shard.begin, shard.end);
      bucket.shards.push_back(std::move(shard));
    }
    buckets.push_back(std::move(bucket));
  }
}

}  // namespace

std::vector<Bucket> make_buckets(const Layout& layout, std::size_t target_coords, int world,
                                 std::size_t alignment, std::span<const std::size_t> cuts) {
  PRIDE_CHECK(target_coords >= 1, "make_buckets: a bucket needs at least 1 coordinate");
  PRIDE_CHECK(world >= 1, "make_buckets: world size ", world);
  PRIDE_CHECK(alignment >= kAlignment && alignment % kAlignment == 0, "make_buckets: alignment ",
              alignment, ", must be a multiple of ", kAlignment);
  const std::size_t target = std::min(target_coords, layout.flat_size());
  const std::size_t target_blocks = std::max<std::size_t>(1, (target + alignment - 1) / alignment);
  std::vector<Bucket> buckets;
  std::size_t end = layout.flat_size();
  for (std::size_t c = cuts.size() + 1; c-- > 0;) {
    const std::size_t begin = c == 0 ? 0 : cuts[c - 1];
    add_buckets(layout, begin, end, target_blocks, static_cast<std::size_t>(world), alignment,
                buckets);
    end = begin;
  }
  return buckets;
}

}  // namespace pride
