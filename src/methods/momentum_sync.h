// MomentumSync: which momenta are averaged over the ranks, and when. Lion Cub's third factor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codecs/levels.h"
#include "pride/bucket.h"
#include "pride/cost.h"
#include "pride/layout.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::methods {

// "fp32", "bf16", or "2" to "8": levels of so many bits. Throws InvalidArgument, naming the method.
ValueFormat value_format(const std::string& method, const std::string& text);

// By tensor, 1 where one of the comma-separated items of `text` names it: a pattern of the tensor's
// name with * for any characters, or none, all, vectors (one dimension or none: norms and biases),
// embeddings ("emb", "wte", "wpe" or "pos" in the name), first and last (of the
// tensors with two dimensions or more). A kind may name none; a pattern that does throws
// InvalidArgument, naming the method.
std::vector<char> choose_tensors(const std::string& method, const Layout& layout,
                                 const std::string& text);

class MomentumSync {
 public:
  // Flat coordinates, multiples of 64.
  struct Range {
    std::size_t begin = 0, end = 0, tensor = 0;
  };

  // Each chosen coordinate is averaged once in `every` steps, so many of them at a step that all
  // steps are of one length.  REQUIRES: every >= 1.
  MomentumSync(const Layout& layout, std::vector<char> chosen, std::int64_t every,
               ValueFormat format);

  // What of the bucket is due at the step, ascending. Does not depend on how buckets are cut.
  std::vector<Range> due(const Bucket& bucket, std::int64_t step) const;

  const std::vector<char>& chosen() const noexcept { return chosen_; }
  ValueFormat format() const noexcept { return format_; }
  std::int64_t every() const noexcept { return every_; }

  Cost cost(const Bucket& bucket, int rank, std::int64_t step) const;

  // What all ranks together send in a step, on average over steps.
  double mean_bytes(std::span<const Bucket> buckets, int world) const;

 private:
  std::vector<char> chosen_;
  std::vector<std::size_t> first_block_;  // by tensor: its place among the chosen blocks of 64
  std::size_t n_blocks_ = 0;
  std::vector<std::size_t> offset_;  // by tensor
  std::int64_t every_;
  ValueFormat format_;
};

// Coordinates in all.
std::size_t size_of(std::span<const MomentumSync::Range> ranges);

}  // namespace pride::methods
