// Counts of + as bit planes: of the signs of ranks, or of the partial counts of nodes; and the
// results computed from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/counts.h"
#include "methods/dlion.h"

namespace pride::methods {

// Ballots about one shard: frames of signs, or counts of `voters_each` ranks. They must outlive
// this object.
class SignCounts {
 public:
  SignCounts(const Shard& shard, const Ballots& up, int voters);

  // Frames without the header. The form of the counts is that of `voters`.
  void write_counts(int voters, CountForm form, std::span<std::byte> out) const;
  void write_vote(const Round& round, Tie tie, std::span<std::byte> out) const;

 private:
  // Bit planes of words [first, first + n) of the shard, n words each, one plane after the other.
  void planes_of(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const;
  void add_signs(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const;
  void add_counts(const Frame& frame, std::size_t first, std::size_t n,
                  std::span<std::uint64_t> planes) const;

  const Shard& shard_;
  std::span<const Frame> frames_;
  bool signs_;
  int voters_each_;
  std::size_t n_planes_;
  std::vector<Run> runs_;             // of signs
  std::vector<std::uint16_t> users_;  // ranks that use each piece
};

}  // namespace pride::methods
