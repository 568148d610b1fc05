// LocalSteps: h steps of a local rule on each worker, then one step of another method, the outer
// method. A worker's gradient for it is the drift.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "methods/fragments.h"
#include "methods/local_parameters.h"
#include "methods/local_rule.h"
#include "rules/rule.h"

namespace pride::methods {

// Option `h`: steps from one exchange to the next.
std::int64_t period_option(const OptionValues& options);

// The outer step. kSigns: signs carry no length, so its gradient is the drift over the learning
// rate lr, its rate outer_lr lr, its decay 1 - outer_lr lr wd. kMeans: its gradient is the drift,
// its rate outer_lr, its decay (1 - lr wd)^h, that of h local steps.
enum class OuterStep { kSigns, kMeans };

// Step t of worker i, h = period, with x the common parameters and y_i the drift:
//   gradient g at x + y_i;  y_i = the local rule's step for g without decay, from y_i
// and in steps h-1, 2h-1, ... after it
//   D_i = -(y_i + e_i) / lr (kSigns) or -(y_i + e_i) (kMeans);  x' = the outer method's step
//   e_i = feedback (e_i + y_i - (x' - decayed x));  y_i = 0
// for each fragment in its own steps; with a delay, x' is adopted later (fragments.h).
class LocalSteps final : public Method, public LocalParameters {
 public:
  // `outer` has the same context. Throws InvalidArgument, naming the method, on bad options.
  LocalSteps(const MethodContext& ctx, std::unique_ptr<Method> outer, OuterStep kind);

  Protocol protocol(const SharedContext& shared) const override;
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override;
  void tensor_ready(std::size_t tensor, const StepContext& ctx, GradientView grad) override;
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override;
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override;
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override;

  void begin(ConstView x) override;
  ConstView common(View x, std::vector<ParameterPlace>& room) const override;
  void replay(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override;
  void rebase(ConstView x) override;
  void arrive(const Bucket& b, const Flight& flight, const StepContext& begun) override;
  void drop(const StepContext& begun, const NonFinite& why) override;
  StepNotes end_step(const StepContext& ctx) override;
  void to_common(View x, std::span<const char> frozen) const override;
  void to_local(View x, std::span<const char> frozen) const override;

 private:
  bool sends(const Bucket& b, const SharedContext& shared) const {
    return fragments_.sends(b.begin, shared.step);
  }
  void take_outer_step(const Bucket& b, const Flight& flight, const StepContext& outer);
  FaultSlot fault_of(std::size_t tensor, const StepContext& ctx);
  FaultSlot fault_of_step(std::size_t tensor, const StepContext& ctx);
  SharedContext outer_context(const SharedContext& shared) const;
  std::vector<StepScalars> outer_scalars(std::span<const StepScalars> groups) const;
  const StepContext& outer_context(const StepContext& ctx);
  bool take_step(std::size_t tensor, std::size_t begin, std::size_t end, GradientView grad,
                 const StepContext& ctx, Guard guard);
  void hand_over(std::size_t tensor, const StepContext& ctx, Guard guard);
  void settle_unused(std::size_t tensor, const StepContext& ctx);
  bool has_drifted(std::size_t tensor, const StepContext& ctx);
  GradientView direction();
  void copy_to_common(ConstView x, std::size_t first);
  void read_held(const std::string& text, std::size_t n_tensors, bool commit);

  Layout layout_;
  Space& space_;
  std::int64_t period_;
  OuterStep kind_;
  double outer_lr_;
  StepScalars outer_betas_;
  std::unique_ptr<Method> outer_;
  float feedback_;
  FlatBuffer &common_, &drift_;
  FlatBuffer* rest_;  // what exchanges did not apply; null without feedback
  Fragments fragments_;
  std::unique_ptr<rules::Rule> rule_;
  std::size_t held_ = 0;  // number of first tensors whose values are in common_

  // Faults of this rank's gradient in step fault_step_: a word for each tensor, and a last one for
  // a step that only this rank drops.
  std::shared_ptr<std::uint32_t[]> faults_;
  std::int64_t fault_step_ = -1;
  // Which tensors had drifted when step drift_step_ began, if they have no gradient in it.
  std::shared_ptr<std::uint32_t[]> drift_words_;
  std::vector<std::uint32_t> drifted_;
  std::int64_t drift_step_ = -1;

  // of the current exchange
  FlatBuffer direction_;                    // D; empty before the first
  std::vector<std::int64_t> handed_over_;   // by tensor: the step in which D was made, or found 0
  std::vector<char> idle_;                  // by tensor: neither gradient nor drift
  std::vector<StepScalars> outer_scalars_;  // by group
  StepContext outer_ctx_;
  FlatBuffer moved_;  // movement of a bucket in the outer step
};

}  // namespace pride::methods
