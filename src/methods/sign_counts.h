// Counts of + as bit planes: of the signs of ranks, or of the partial counts of nodes; and the
// results computed from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/counts.h"
#include "methods/dlion.h"

namespace pride::methods {

// Votes for one shard: frames of signs with weights, or partial counts of up to `votes_each`
// votes; together they have at most `votes`. They must outlive this object.
class SignCounts {
 public:
  SignCounts(const Shard& shard, const VoterFrames& voters, int votes, int votes_each);

  // Write frames without the header. The layout of counts is that for the constructor's `votes`.
  void write_counts(CountForm form, std::span<std::byte> out) const;
  void write_vote(const SharedContext& shared, Tie tie, std::span<std::byte> out,
                  const OrthogonalBlend* muon = nullptr) const;

 private:
  // Bit planes of words [first, first + n) of the shard, n words each, one plane after the other.
  void planes_of(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const;
  void count_signs(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const;
  void add_counts(const Frame& frame, std::size_t first, std::size_t n,
                  std::span<std::uint64_t> planes) const;

  void add_users(std::size_t frame);
  int weight_of(std::size_t frame) const { return weights_.empty() ? 1 : weights_[frame]; }
  std::vector<const std::uint64_t*> rows_of(const Run& run, std::size_t bit,
                                            std::size_t begin) const;

  kernels::SharedBits tie_bits_at(const SharedContext& shared, const Piece& piece, std::size_t word,
                                  const OrthogonalBlend* muon) const;

  const Shard& shard_;
  VoterFrames voters_;
  std::span<const Frame> frames_;
  std::span<const int> weights_;  // of frames of signs; empty: 1
  bool signs_;
  int votes_, votes_each_;
  std::size_t n_planes_;
  std::vector<Run> runs_;   // of signs
  std::vector<int> users_;  // votes of the ranks that use each piece
};

}  // namespace pride::methods
