// What lion-cub and lion-cub-auto share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exchange/quantised_vote.h"
#include "methods/momentum_sync.h"
#include "methods/quantiser.h"
#include "methods/sign_method.h"
#include "methods/vote_probe.h"

namespace pride::methods {

class LionCub : public VoteMethod {
 public:
  // Throws InvalidArgument, naming the method, on options that make no sense.
  LionCub(const std::string& name, const MethodContext& ctx);

  bool needs_whole_gradient() const noexcept override;
  bool cost_follows_shards() const noexcept override { return false; }  // nor do slices of momenta
  bool has_two_levels() const noexcept override { return false; }  // levels and momenta have not
  ExchangeForm exchange_form(const Bucket& b) const override;
  std::size_t alignment() const noexcept override;
  void agree(Communicator& c, const StepContext& ctx, ConstView g) override;
  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override;
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override;
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override;
  void end_step(const StepContext& ctx) override;
  std::span<const TensorDiagnostics> diagnostics() const override { return diagnostics_; }
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;
  void save(StateWriter& out) const override;
  void load(StateReader& in) override;
  std::uint64_t state_floats() const override;

 protected:
  // The two things that can change between steps.
  struct Plan {
    int bits = 4;
    std::vector<char> synced;  // by tensor
  };
  const Plan& plan() const noexcept { return plan_; }
  void set_plan(Plan plan);

  virtual bool probes(std::int64_t step) const;
  const VoteProbe& probe() const noexcept { return probe_; }
  const Layout& layout() const noexcept { return layout_; }
  int world() const noexcept { return world_; }
  const QuantiserOptions& quantiser_options() const noexcept { return quantiser_.options(); }

  // Sent in a step by all ranks together, on average, were this the plan.
  // `sampled`: the share of steps that share samples.
  double bytes_of(const Plan& plan, std::span<const Bucket> buckets, double sampled) const;
  double probe_rate() const;

 private:
  kernels::Blend blend(const StepScalars& s) const override;
  exchange::QuantisedVote how(const Bucket& b, int bits) const;
  void encode_levels(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w);
  void encode_shard(const Shard& shard, ConstView g, const StepContext& ctx,
                    std::span<std::byte> frame, std::span<float> e_next,
                    std::optional<Poison>& poison);
  void gather_momentum(const Bucket& b, const StepContext& ctx, Wire& w);
  void sample_blends(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w);
  void sample_results(const Bucket& b, const StepContext& ctx, Wire& w);
  int sent_level(const Shard& shard, std::span<const std::byte> frame, std::size_t coord) const;
  void share(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w);

  Layout layout_;
  int world_;
  std::string form_;
  Quantiser quantiser_;
  Granularity granularity_;
  std::int64_t sync_every_, probe_every_;
  ValueFormat sync_format_;
  Plan plan_;
  MomentumSync sync_;
  VoteProbe probe_;
  std::vector<TensorDiagnostics> diagnostics_;
  std::unique_ptr<FlatBuffer> e_;  // what the levels left out, with error feedback
};

// Defaults and help of the options of both.
MethodInfo lion_cub_base_info(int world);

}  // namespace pride::methods
