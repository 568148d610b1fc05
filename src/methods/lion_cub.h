// Lion Cub: a quantiser and a momentum synchronisation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "methods/dlion.h"
#include "methods/momentum_sync.h"
#include "methods/quantiser.h"

namespace pride::methods {

class LionCub final : public Method {
 public:
  // Throws InvalidArgument, naming the method, on invalid options.
  LionCub(const MethodContext& ctx);

  Protocol protocol(const SharedContext& shared) const override;
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override;
  void encode_preliminary(const StepContext& ctx, GradientView g, Wire& preliminary) override;
  void take_preliminary(const StepContext& ctx, const Wire& preliminary) override;
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override;
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override;
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override;

 private:
  enum Id : int { kVotes, kSum, kMomenta };
  enum class RouteChoice { kAuto, kSharded, kNative };

  // Votes, without the other parts.
  std::vector<Part> vote_parts(const Bucket& b, int voters) const;

  static std::size_t width_of(Sum type);
  static std::span<std::uint64_t> words_of_sums(Wire& sums);
  kernels::LevelLines integers_of(const Bucket& b, const Piece& p, Sum type,
                                  std::span<std::uint64_t> words) const;
  void encode_levels(const Bucket& b, const StepContext& ctx, Flight& flight);
  void serve_levels(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                    Reply& reply) const;
  void serve_sums(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                  Sum type, Reply& reply) const;
  kernels::SharedBits tie_bits_of_levels(const Piece& p, const VoterFrames& voters,
                                         const SharedContext& shared) const;

  Layout layout_;
  Space& space_;
  Tie tie_;
  RouteChoice route_;
  Quantiser quantiser_;
  int bits_;
  MomentumSync sync_;
  FlatBuffer& m_;
  FlatBuffer* e_ = nullptr;  // the quantisation error, with error feedback
  FlatBuffer next_;          // that of this step, until apply(): the step may be dropped
};

}  // namespace pride::methods
