// DenseMean: the mean of the ranks' gradients, uncompressed or in levels of few bits. A component
// of the dense methods and of 1-bit Adam's first steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>

#include "methods/level_mean.h"
#include "rules/rule.h"

namespace pride::methods {

// kOrdered: servers of shards sum in rank order: the bytes of a ring, the same bits everywhere.
// kNative: the transport's all-reduce, in its own order. kBf16: as kOrdered with half the bytes;
// all gradients, a rank's own too, are rounded to bfloat16 and summed in float32, and the mean is
// rounded again. A coordinator sums in the order of workers' numbers, with the same bits as ranks.
// It sums in double if votes are weighted or if the sum overflows. kInt8, kInt4, kInt2: LevelMean.
enum class Dense { kOrdered, kNative, kBf16, kInt8, kInt4, kInt2 };

constexpr int level_bits(Dense kind) {  // 0: no levels
  return kind == Dense::kInt8 ? 8 : kind == Dense::kInt4 ? 4 : kind == Dense::kInt2 ? 2 : 0;
}

class DenseMean final : public MeanGradient {
 public:
  // kBf16 needs the host.
  DenseMean(Dense kind, Space& space) : kind_(kind), space_(space) {
    if (const int bits = level_bits(kind); bits != 0) levels_.emplace(bits, space);
  }

  // True if frames may lie in the gradient's own memory.
  bool sends_from_gradient() const noexcept { return kind_ == Dense::kOrdered; }

  static constexpr int kMostVotes = std::numeric_limits<int>::max();  // with a coordinator

  // `central`: for a coordinator, which checks frames before it sums them.
  std::vector<Part> parts(const Bucket& bucket, bool central = false) const;
  void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const;
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const;
  void visit(const Bucket& bucket, const Flight& flight, const VisitBlock& visit) const override;

  // Makes the rule's step for the mean gradient; a tensor that no rank uses only decays.
  void apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx, rules::Rule& rule,
             View x) const;

 private:
  std::span<const std::byte> means(const Bucket& bucket, const Flight& flight) const;
  std::span<const float> mean_of(const Bucket& bucket, const Flight& flight, std::size_t begin,
                                 std::size_t n, std::span<float> block) const;

  void encode_on_device(const Bucket& bucket, const StepContext& ctx, Flight& flight,
                        ByteBuffer& room) const;

  Dense kind_;
  Space& space_;
  std::optional<LevelMean> levels_;
};

}  // namespace pride::methods
