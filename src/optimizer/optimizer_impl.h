// The members of an optimizer, and the parts of its work.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bucket.h"
#include "methods/method.h"
#include "optimizer/agreement.h"
#include "optimizer/central.h"
#include "optimizer/follower.h"
#include "optimizer/pipeline.h"
#include "optimizer/placed_parameters.h"
#include "optimizer/step_scalars.h"
#include "optimizer/virtual_workers.h"
#include "pride/optimizer.h"
#include "pride/registry.h"

namespace pride {

struct Optimizer::Impl {
  Impl(Communicator& user_comm, Layout the_layout, OptimizerOptions the_options);

  void prepare(const Communicator& user_comm);
  // The number of ranks, or of virtual workers.
  int world_of(const Communicator& comm) const {
    return options.virtual_workers > 0 ? options.virtual_workers : comm.size();
  }
  int world() const { return world_of(*comms.front()); }
  int rank() const { return comms.front()->rank(); }
  int n_workers() const { return workers ? workers->size() : 1; }
  StateTable& table(int worker) { return workers ? workers->table(worker) : method->state(); }
  std::uint64_t method_floats() const noexcept {
    return workers ? workers->state_floats() : method->state().floats();
  }
  std::unique_ptr<Impl> with(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups);
  GroupValues& group(int index);
  Follower& follower(int part, const char* call) const;
  using Setting = std::pair<std::string, std::uint64_t>;
  void agree(Call call, const std::function<std::vector<Setting>()>& body);
  void check_parameters();
  void place(const Parameters& params, const char* call);
  void follow(const Parameters& params, const char* call);
  void publish();
  StateDict save(int worker);
  void load(const std::function<StateDict(int worker)>& make);
  void move_server_state(std::span<const Bucket> from, Impl& to);
  void check_same_run(const StateDict& state) const;
  std::vector<Bucket> buckets_of(const StateDict& state) const;
  void check_nodes(int world, bool hierarchical) const;
  std::vector<std::int64_t> check_ranks_agree(Communicator& user_comm);
  Round round_of(std::int64_t step) const;
  Cost cost_of(std::int64_t step) const;
  bool ends_round(std::int64_t step) const {
    return central && (step + 1) % central->period() == 0;
  }
  void check_coordinator(const Communicator& user_comm) const;
  void check_virtual_workers(const Communicator& user_comm) const;
  void check_worker(int worker, const char* call) const;
  void join();
  void replay(std::span<const std::byte> record);
  void begin(const Parameters& params, const Gradients* grads);
  GradientView view_of(const Gradients* grads);
  void set_context(const Parameters& params, const char* call);
  void hand_over(int worker, const Parameters& params, const Gradients& grads,
                 std::span<const bool> unused_there);
  StepReport finish_workers(const Parameters& params);
  void report_workers(const std::optional<NonFinite>& non_finite, StepReport& report);
  void place_gradients(const Gradients& grads);
  void place_gradient(std::size_t tensor, const ConstTensor& grad);
  void check_frozen() const;
  void tensor_ready(std::size_t tensor, bool is_unused);
  void tensor_ready(std::size_t tensor, const ConstTensor& grad);
  void check_unreported(std::size_t tensor) const;
  void submit_tensor(std::size_t tensor, bool is_unused);
  std::vector<std::size_t> take_released();
  StepReport finish();
  Traffic traffic() const;
  Traffic uncounted();  // since the last call
  StepReport whole_step(const Parameters& params, const Gradients& grads,
                        std::span<const bool> unused_here);
  // An exception in a part of a step ends the step. Momentum is then half changed, and parameters
  // if a bucket was applied.
  template <typename Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const std::exception& e) {
      in_step = false;
      is_whole = is_whole || pipeline->has_applied_nothing();
      refusal = e.what();
      leave();
      throw;
    }
  }
  // Central changes the parameters by whole rounds, so steps_done is theirs also after an error.
  template <typename Body>
  void by_rounds(std::int64_t first, Body&& body) {
    std::int64_t round = first;
    is_whole = true;
    try {
      body(round);
    } catch (...) {
      if (round != first) steps_done = round * central->period();
      throw;
    }
    if (round != first) steps_done = round * central->period();
    is_whole = false;
  }
  void leave() noexcept;
  bool skips_non_finite() const {
    return options.non_finite == NonFinitePolicy::kSkip || loss_scale.used;
  }
  void complete();
  void skip(const std::string& text, bool alone, StepReport& report);
  std::string describe(const NonFinite& seen, std::int64_t step) const;

  Communicator& caller;
  Layout layout;
  OptimizerOptions options;
  std::unique_ptr<Space> own_space;  // on options.device, or the host
  Space& space;                      // *own_space
  MethodInfo info;
  std::vector<GroupValues> groups;
  std::vector<std::int64_t> group_starts;  // the first step of each, for Adam's bias correction
  // duplicates, so that their counters have only the optimizer's traffic
  std::vector<std::unique_ptr<Communicator>> comms;
  std::vector<Bucket> buckets;
  std::unique_ptr<Method> method;
  std::unique_ptr<Central> central;  // with a coordinator
  std::unique_ptr<Central> shadow;   // without one, once a record was replayed
  std::unique_ptr<VirtualWorkers> workers;
  std::vector<std::unique_ptr<Follower>> followers;  // by part
  std::vector<std::byte> results;                    // of the last step, once there is a follower
  std::vector<int> weights;                          // votes of each rank; empty: one

  std::int64_t steps_done = 0;
  std::unique_ptr<PlacedParameters> parameters;
  std::vector<char> frozen;  // by tensor; empty: none
  float gradient_factor = 1;
  struct LossScale {
    bool used = false;              // a step that is not finite is skipped and does not count
    const float* factor = nullptr;  // null: 1
  };
  LossScale next_scale;
  bool in_step = false;
  bool params_checked = false;  // all ranks had equal parameters at the start
  std::string refusal;          // why further steps are refused; empty: they are not
  bool is_whole = false;        // after an error: parameters and state are those of steps_done

  // of the current step
  StepContext ctx;
  LossScale loss_scale;
  std::vector<StepScalars> scalars;
  std::vector<char> unused;
  std::vector<char> reported;
  std::vector<char> released;  // by tensor: take_released() has returned it
  std::vector<std::vector<std::size_t>> buckets_of_tensor;
  std::vector<std::size_t> tensors_of_bucket;  // their number
  std::vector<std::size_t> waiting;            // by bucket: tensors not yet reported
  Traffic traffic_before;
  std::vector<GradientPlace> gradients;  // addresses, by tensor
  bool one_by_one = false;               // each gradient is given when it is ready

  std::unique_ptr<Pipeline> pipeline;  // last: its threads read the members above until destroyed
};

}  // namespace pride
