// Lion Cub: a quantiser, a momentum synchronisation and a probe, and a plan of their settings.
// lion-cub has a fixed plan; lion-cub-auto holds one of these and changes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "methods/dlion.h"
#include "methods/momentum_sync.h"
#include "methods/quantiser.h"
#include "methods/vote_probe.h"

namespace pride::methods {

class LionCub final : public Method {
 public:
  // The settings that can change between steps.
  struct Plan {
    int bits = 4;
    std::vector<char> synced;  // by tensor
  };
  using Measures = std::function<bool(std::int64_t step)>;

  // Throws InvalidArgument, naming the method, on invalid options. `measures`: steps with samples
  // in addition to those of probe_every.
  LionCub(const std::string& name, const MethodContext& ctx, Measures measures = nullptr);

  Protocol protocol(const Round& round) const override;
  std::vector<Part> parts(const Bucket& b, const Round& round) const override;
  void prepare(const StepContext& ctx, GradientView g, Wire& before) override;
  void take_before(const StepContext& ctx, const Wire& before) override;
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override;
  void serve(const Part& part, const Shard& shard, const Ballots& up, const Round& round,
             Reply& reply) const override;
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override;
  StepNotes end_step(const StepContext& ctx) override;

  // Votes of this many bits, without the other parts.
  std::vector<Part> vote_parts(const Bucket& b, int bits, int voters) const;

  const Plan& plan() const noexcept { return plan_; }
  void set_plan(Plan plan);
  const VoteProbe& probe() const noexcept { return probe_; }
  const QuantiserOptions& quantiser_options() const noexcept { return quantiser_.options(); }
  const SyncSchedule& schedule() const noexcept { return schedule_; }

  // Bytes per step of all ranks together under this plan, averaged over the synchronising steps of
  // the interval that `step` is in. `sampled`: the fraction of steps with samples.
  double bytes_of(const Plan& plan, std::span<const Bucket> buckets, double sampled,
                  std::int64_t step) const;
  double probe_rate() const;

 private:
  enum Id : int { kVotes, kSum, kMomenta, kSamples };
  enum class RouteChoice { kAuto, kSharded, kNative };

  bool probes(const Round& round) const;
  void check_device(const std::string& name) const;
  std::span<const float> error() const;
  void encode_on_device(const Bucket& b, const StepContext& ctx, Flight& flight);
  void levels_on_device(const Bucket& b, const StepContext& ctx, Flight& flight);
  static std::size_t width_of(Sum type);
  static std::span<std::uint64_t> words_of_sums(Wire& sums);
  LevelKernels::Lines integers_of(const Bucket& b, const Piece& p, Sum type,
                                  std::span<std::uint64_t> words) const;
  LevelKernels::Lines sent_lines(const Bucket& b, std::size_t shard, const Piece& p,
                                 Flight& flight);
  void encode_votes(const Bucket& b, const StepContext& ctx, Flight& flight);
  void encode_levels(const Bucket& b, const StepContext& ctx, Flight& flight);
  int sent_level(const Bucket& b, const Flight& flight, std::size_t coord) const;
  void serve_levels(const Shard& shard, const Ballots& up, const Round& round, Reply& reply) const;
  void serve_sums(const Shard& shard, const Ballots& up, const Round& round, Sum type,
                  Reply& reply) const;
  kernels::SharedBits ties_of_levels(const Piece& p, const Ballots& up, const Round& round) const;

  Layout layout_;
  Space& space_;
  int world_;
  Tie tie_;
  RouteChoice route_;
  Quantiser quantiser_;
  SyncSchedule schedule_;
  std::int64_t probe_every_;
  ValueFormat sync_format_;
  Plan plan_;
  MomentumSync sync_;
  VoteProbe probe_;
  Measures measures_;
  FlatBuffer& m_;
  FlatBuffer* e_ = nullptr;  // the quantisation error, with error feedback
  FlatBuffer next_;          // the error of this step, on a device
};

// Options and defaults that lion-cub and lion-cub-auto have in common.
MethodInfo lion_cub_base_info();

}  // namespace pride::methods
