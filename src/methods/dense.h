// Shared by all methods on the mean gradient: their option and MethodInfo, and a method for a rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "methods/dense_mean.h"

namespace pride::methods {

// Option `dense`.
Dense dense_option(const OptionValues& options);
std::string dense_host_only(const OptionValues& options);            // MethodEntry::host_only
void set_dense_bits(const OptionValues& options, MethodInfo& info);  // MethodEntry::adjust
MethodInfo dense_info(std::string title, std::string source);

// g = mean of the ranks' gradients;  x = the rule's step for g
template <typename Rule>
class DenseMethod : public Method {
 public:
  template <typename... RuleArgs>
  DenseMethod(const MethodContext& ctx, RuleArgs&&... args)
      : mean_(dense_option(ctx.options), ctx.space), rule_(state_, StateKind::kShared, args...) {
    mean_gradient_ = &mean_;
  }

  Protocol protocol(const SharedContext& shared) const override {
    return {.most_votes = shared.central ? DenseMean::kMostVotes : 0,
            .replays = true,
            .same_apply = true,
            .keeps_gradient = mean_.sends_from_gradient()};
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override {
    return mean_.parts(b, shared.central);
  }
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    mean_.encode(b, ctx, flight);
  }
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    mean_.serve(part, shard, voters, shared, reply);
  }
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    mean_.apply(b, flight, ctx, rule_, x);
  }

 protected:
  DenseMean mean_;
  Rule rule_;
};

}  // namespace pride::methods
