// Replica::Impl: the settings, the sections with their methods and state, and the inputs of a step.
// Each front door's Impl adds how its steps exchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "methods/local_parameters.h"
#include "optimizer/placed_parameters.h"
#include "optimizer/reporting.h"
#include "optimizer/section.h"
#include "optimizer/step_scalars.h"
#include "pride/agreement.h"
#include "pride/communicator.h"
#include "pride/registry.h"
#include "pride/replica.h"

namespace pride {

struct Replica::Impl {
  // Checks that need no other rank. `world`: the number of workers whose results each step joins;
  // `here`: those in this process. Throws InvalidArgument or OutOfMemory.
  Impl(Layout the_layout, OptimizerOptions the_options, int the_world, int here = 1);
  virtual ~Impl() = default;

  // ---- What front doors do in different ways.

  virtual int rank() const { return 0; }        // in saved states, of the first of `workers`
  virtual int voter() const { return rank(); }  // the rank in frames
  virtual void complete() {}              // waits for exchanges in flight: their results are state
  virtual void before_load() noexcept {}  // drops them
  virtual void after_load() noexcept {}
  // Runs the body, which only checks. Compares over all ranks whether it threw InvalidArgument,
  // then what it returned: all continue, or all throw.
  using Settings = std::vector<std::pair<std::string, std::uint64_t>>;
  virtual void agree(Call, const std::function<Settings()>& body) { body(); }
  virtual void check_parameters() = 0;  // before the first step, and the first after a change
  // Of one section, in a step or as the mean over its period.
  virtual Cost cost_of(std::size_t section, std::int64_t step, bool mean) const;
  virtual std::size_t frame_bytes() const = 0;
  virtual void to_local(View x) const;
  // Moves a section's server state, which lies at the servers of the buckets `from`, to its
  // servers.
  virtual void move_server_state(std::size_t /*section*/, std::span<const Bucket> /*from*/) {}
  // For calls that virtual workers allow between the gradients of a step.
  virtual void check_between_gradients(const char* call) const { check_idle(call); }

  // ---- Tensors.

  void check_idle(const char* call) const;                 // throws InvalidArgument during a step
  void place(const Parameters& params, const char* call);  // also during a step
  void publish() { publish(*parameters); }
  void publish(const PlacedParameters& written);
  void leave() noexcept;
  // Runs the body with a view of `params`, which need not be where the replica's parameters lie.
  template <typename Body>
  auto with(const Parameters& params, const char* call, const Body& body);
  std::uint64_t common_hash(View x) const;
  // A worker's steps, by section.
  using Steps = std::vector<SectionStep>;
  // Calls body(local parameters, view, frozen) for each section that has local steps.
  template <typename Body>
  void for_local(const Steps& steps, View x, const Body& body) const;
  SectionStep& step_of(Steps& steps, std::size_t tensor) const;
  std::size_t index_of(std::size_t tensor) const;  // in its section
  // None: they are given one by one.
  void place_gradients(Steps& steps, const std::optional<Gradients>& grads) const;
  void place_gradient(Steps& steps, std::size_t tensor, const ConstTensor& grad) const;
  bool lacks_gradient(Steps& steps, std::size_t tensor) const;
  void check_flags(std::span<const bool> given) const;
  // Flags of tensors that have no gradient: the caller says so, gives none, or has frozen them.
  void set_unused(Steps& steps, std::span<const bool> given) const;

  // ---- Steps.

  void set_context(const Parameters& params, const char* call);  // of all workers
  void set_views();  // SectionStep::x: where the parameters lie now
  SharedContext shared_context(std::int64_t step) const;
  virtual bool skips_non_finite() const { return options.non_finite == NonFinitePolicy::kSkip; }
  void skip(const std::string& text, StepReport& report);
  std::string describe(const NonFinite& seen, std::int64_t step) const;
  static void enter(const Traffic& traffic, StepReport& report);
  static void enter(const StepTimes& times, StepReport& report);
  static StepNotes end_local_step(const SectionStep& step);
  // Reports what was not finite, and ends a step that was not dropped as a whole.
  void end_step(const std::optional<NonFinite>& non_finite, StepReport& report);
  // No other worker sees this one's flag, so all would go on without it.
  virtual void fail_others(const std::string& /*why*/) {}
  void note(const StepNotes& notes, StepReport& report);
  // An exception in a part of a step ends the step. Momentum is then half changed, and parameters
  // if a bucket was applied.
  template <typename Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const std::exception& e) {
      in_step = false;
      is_whole = is_whole || has_applied_nothing();
      refusal = e.what();
      leave();
      throw;
    }
  }
  virtual bool has_applied_nothing() const { return false; }
  void check_usable() const;

  // ---- Groups and state.

  GroupValues& group(int index);
  ParamGroup settings(int group);
  Cost cost_of(std::int64_t step, bool mean) const;  // of all sections
  bool has_server_state(std::size_t section) const {
    return workers.front()[section].method->state().has(StateKind::kServer);
  }
  std::uint64_t state_floats(std::size_t section) const;  // of all workers in this process
  StateDict save(std::size_t worker);
  using States = std::vector<StateDict>;  // of one rank, by section
  void load(const std::function<States(std::size_t worker)>& make);
  States divide(StateDict state) const;
  void check_same_run(const StateDict& state) const;
  std::vector<Bucket> buckets_of(const StateDict& state, std::size_t section) const;
  // The layout with more tensors, and the options with more groups, for an Impl that takes over.
  std::pair<Layout, OptimizerOptions> grown(std::vector<TensorSpec> tensors,
                                            std::vector<ParamGroup> groups);
  void take_over(Impl& before);
  void check_method(const SectionStep& step) const;
  std::vector<int> votes_of(std::span<const std::int64_t> given) const;

  const Layout layout;
  OptimizerOptions options;
  const int world;
  const std::unique_ptr<Space> own_space;  // on options.device, or the host
  Space& space;                            // *own_space
  Sections sections;
  std::vector<GroupValues> groups;
  std::vector<std::int64_t> group_starts;  // the first step of each, for Adam's bias correction
  std::vector<Steps> workers;              // in this process
  std::vector<int> weights;                // votes of each worker; empty: one
  std::unique_ptr<PlacedParameters> parameters;
  bool by_ballots = false;  // SharedContext::central
  std::int64_t steps_done = 0;
  float gradient_factor = 1;
  std::vector<char> frozen;     // by tensor; empty: none
  bool params_checked = false;  // parameters of all ranks were compared since a load or change
  bool in_step = false;
  bool is_whole = false;  // after a failed step: no part of it was applied, so save() is allowed
  std::string refusal;    // not empty: no further steps

  // of the current step
  std::vector<StepScalars> scalars;
  std::vector<std::vector<ParameterPlace>> places;  // by section
  std::vector<Traffic> section_traffic;             // of the last step, by section
};

template <typename Body>
void Replica::Impl::for_local(const Steps& steps, View x, const Body& body) const {
  std::vector<ParameterPlace> room;
  for (const SectionStep& step : steps) {
    if (!step.is_local()) continue;
    body(*step.method->local(), step.section->view(x, room), step.section->flags(frozen));
  }
}

template <typename Body>
auto Replica::Impl::with(const Parameters& params, const char* call, const Body& body) {
  check_idle(call);
  space.after(options.stream);
  if (!parameters->may_be_at(params)) return body(PlacedParameters(*parameters, params, call));
  parameters->place(params, call);  // adopts what the caller has written
  return body(*parameters);
}

}  // namespace pride
