// Distributed Lion's vote as functions of one shard, for the methods that vote with signs;
// encode_signs.h has the worker's other half.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/signs.h"
#include "methods/sign_method.h"

namespace pride::methods {

// Result of a tied vote: a bit that all ranks share, or zero (a ternary result).
enum class Tie { kHash, kZero };

// Option `tie`, and its declaration.
Tie tie_option(const OptionValues& options);
MethodOption tie_option_info(std::string tied);

// Server: the majority of frames of signs. `muon`: as in apply_vote().
void serve_vote(const Shard& shard, const VoterFrames& voters, const SharedContext& shared, Tie tie,
                std::span<std::byte> result, const OrthogonalBlend* muon = nullptr);

// Worker: x = (1 - lr wd) x - lr vote; only decay where no rank uses the tensor. `muon`: their
// scales multiply lr.
void apply_vote(Space& space, const Shard& shard, const VoteView<const std::byte>& vote,
                const StepContext& ctx, View x, const OrthogonalBlend* muon = nullptr);

// dlion-vote, dlion-muon and signum-vote.
class SignVote : public SignMethod {
 public:
  SignVote(const MethodContext& ctx, BlendOf blend, bool muon)
      : SignMethod(ctx, blend, muon), tie_(tie_option(ctx.options)) {}

  Protocol protocol(const SharedContext& shared) const override;
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override;
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override;
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override;

 private:
  FrameKind result_frames(int votes, Route route) const override;

  Tie tie_;
};

}  // namespace pride::methods
