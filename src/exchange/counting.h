// Filling a frame of counts: from the signs of ranks, or from the counts of whole hosts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/counts.h"
#include "exchange/frames.h"
#include "exchange/sign_vote.h"
#include "pride/bucket.h"
#include "pride/step.h"

namespace pride::exchange {

// The counts of one shard as bit planes, some words at a time.
class PlaneSource {
 public:
  virtual ~PlaneSource() = default;

  // Bit planes of words [first, first + n) of the shard, n words each, one plane after the other.
  virtual void planes_of(std::size_t first, std::size_t n,
                         std::span<std::uint64_t> planes) const = 0;
};

// Words of a shard whose planes stay in the first cache.
inline constexpr std::size_t kPlaneWords = 512;

// The counts themselves, packed and as planes, of a frame whose other parts are written.
void write_count_words(const PlaneSource& source, const CountFrame& at, std::span<std::byte> out);

// The frame of counts, header left out, of the ranks whose frames of signs these are. `form` is
// that of a world of frames.size() ranks.
void count_signs(const Shard& shard, const Frames& frames, CountForm form,
                 std::span<std::byte> out);

// Sums of frames of counts about one shard, one of each host, of `per_host` ranks. The frames must
// live as long.
class HostCounts final : public PlaneSource {
 public:
  HostCounts(const Shard& shard, const Frames& frames, int per_host);

  void planes_of(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const override;

  // Ranks present on all hosts together, by piece.
  std::span<const std::uint16_t> by_piece() const { return by_piece_; }

  // The frame of counts of all ranks, header left out: that which count_signs makes of their signs.
  void write_counts(CountForm form, std::span<std::byte> out) const;

  // The frame of their vote, header left out: that which sign_vote makes of their signs.
  void write_vote(const StepContext& ctx, Tie tie, std::span<std::byte> out) const;

 private:
  void add(std::span<const std::byte> frame, std::size_t first, std::size_t n, std::size_t stride,
           std::span<std::uint64_t> planes) const;

  const Shard& shard_;
  const Frames& frames_;
  CountFrame host_;  // of one host
  int world_;
  std::size_t n_planes_;
  std::vector<std::uint16_t> by_piece_;
};

}  // namespace pride::exchange
