// DenseMean: the mean of the ranks' gradients, uncompressed. A component of the dense methods and
// of 1-bit Adam's first steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>

#include "methods/method.h"
#include "rules/rule.h"

namespace pride::methods {

// kOrdered: shards to their servers, summed in rank order, and back: the bytes of a ring, the same
// bits everywhere. kNative: the transport's all-reduce, in an order of its own. kBf16: as kOrdered,
// with every gradient, a rank's own too, rounded to bfloat16 before the sum, which is float32, and
// the mean rounded again: half the bytes. A coordinator sums in the order of its workers' numbers,
// the same bits as ranks; in double where votes are weighted or the sum overflows.
enum class Dense { kOrdered, kNative, kBf16 };

class DenseMean {
 public:
  // Throws InvalidArgument, naming the method, where the space has no such mean.
  DenseMean(Dense kind, const std::string& method, Space& space);

  // Frames may lie in the gradient's own memory.
  bool sends_from_gradient() const noexcept { return kind_ == Dense::kOrdered; }

  static constexpr int kMostVotes = std::numeric_limits<int>::max();  // by a coordinator

  // `central`: for a coordinator, which checks frames before it sums them.
  std::vector<Part> parts(const Bucket& bucket, bool central = false) const;
  void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const;
  void serve(const Part& part, const Shard& shard, const Ballots& up, const Round& round,
             Reply& reply) const;
  void visit(const Bucket& bucket, const Flight& flight, const Method::VisitBlock& visit) const;

  // Takes the rule's step for the mean gradient; a tensor that no rank uses only decays.
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
};

}  // namespace pride::methods
