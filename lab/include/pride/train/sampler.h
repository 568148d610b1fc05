// Sampler: the training samples of each worker, step by step; a function of the seed alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace pride::train {

struct Sharding {
  enum class Kind { kPartition, kReplicate, kDirichlet } kind = Kind::kPartition;
  double concentration = 0;  // of the Dirichlet distribution
};

// "partition", "replicate" or "dirichlet:A" with A > 0. Throws InvalidArgument otherwise.
Sharding parse_sharding(std::string_view text);

// A sample, and the number of the pass over its worker's part.
struct Draw {
  std::uint32_t sample = 0;
  std::uint32_t epoch = 0;
};

struct SamplerOptions {
  Sharding sharding;
  std::uint64_t seed = 0;
  int rank = 0, world = 1;
};

// The samples of one rank as an endless sequence.
//   partition   a shuffle of all samples per epoch, the same on all ranks; rank r takes positions
//               r, r + world, ...: parts are disjoint, cover everything, differ by at most one
//   replicate   all samples, in a shuffle of its own per epoch
//   dirichlet   each class is dealt to the ranks in shares drawn from Dirichlet(A), once; a rank
//               shuffles its own part per epoch
class Sampler {
 public:
  // `labels` (one per sample) may be empty unless the sharding is dirichlet.
  // Throws InvalidArgument if a rank would have no sample.
  Sampler(std::size_t n_samples, std::span<const std::uint16_t> labels, SamplerOptions options);

  // Writes draws first, first + 1, ... of this rank's sequence to `out`.
  void draw(std::uint64_t first, std::span<Draw> out);

  // Draws of this rank that are one epoch: with replicate n_samples, otherwise n_samples / world.
  std::uint64_t epoch_draws() const noexcept;

  // The size of this rank's part.
  std::uint64_t part_size() const noexcept;

  // This rank's part in the given epoch, in order.
  std::vector<std::uint32_t> part(std::uint32_t epoch) const;

 private:
  SamplerOptions options_;
  std::size_t n_samples_;
  std::vector<std::uint32_t> own_;   // dirichlet: this rank's samples, ascending
  std::vector<std::uint32_t> part_;  // of epoch_
  std::int64_t epoch_ = -1;
};

// For each rank its samples under dirichlet sharding, ascending.
std::vector<std::vector<std::uint32_t>> dirichlet_parts(std::span<const std::uint16_t> labels,
                                                        int world, double concentration,
                                                        std::uint64_t seed);

}  // namespace pride::train
