// LevelMean: the mean of the ranks' gradients in levels of few bits, both ways. A component of
// DenseMean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/levels.h"
#include "methods/mean_gradient.h"
#include "rules/rule.h"

namespace pride::methods {

// Worker: sends its gradient rounded to levels. Server: decodes them, adds them in rank order in
// float32, divides, and rounds the mean to levels. 64 values share a scale, so all bits are the
// same on every transport and for every cut into buckets. Nothing is kept: an error of rounding is
// lost.
class LevelMean {
 public:
  LevelMean(int bits, Space& space) : format_{ValueFormat::Kind::kLevels, bits}, space_(space) {}

  std::vector<Part> parts(const Bucket& bucket) const;
  void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const;
  void serve(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
             Reply& reply) const;
  void visit(const Bucket& bucket, const Flight& flight,
             const MeanGradient::VisitBlock& visit) const;
  void apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx, rules::Rule& rule,
             View x) const;

 private:
  ValueView<const std::byte> means(const Shard& shard, std::span<const std::byte> frame) const {
    return {frame.data(), shard.size(), format_, shard.pieces.size()};
  }

  ValueFormat format_;
  Space& space_;
};

}  // namespace pride::methods
