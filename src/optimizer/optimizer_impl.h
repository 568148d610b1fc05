// What an optimizer holds, and the parts of its work.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bucket.h"
#include "methods/method.h"
#include "optimizer/central.h"
#include "optimizer/pipeline.h"
#include "optimizer/step_scalars.h"
#include "pride/optimizer.h"
#include "pride/registry.h"

namespace pride {

struct Optimizer::Impl {
  Impl(Communicator& user_comm, Layout the_layout, OptimizerOptions the_options);

  void prepare(const Communicator& user_comm);
  std::unique_ptr<Impl> with(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups);
  GroupValues& group(int index);
  using Setting = std::pair<std::string, std::uint64_t>;
  void agree(const char* verdict, const std::function<std::vector<Setting>()>& body);
  void check_parameters(std::span<const float> params);
  void check_between_steps(std::span<float> params, const char* call) const;
  void load(const std::function<StateDict()>& make);
  void check_same_run(const StateDict& state) const;
  std::vector<Bucket> buckets_of(const StateDict& state) const;
  void check_nodes(int world, bool hierarchical) const;
  std::vector<std::int64_t> check_ranks_agree(Communicator& user_comm, bool usable);
  Round round_of(std::int64_t step) const;
  Cost cost_of(std::int64_t step) const;
  bool ends_round(std::int64_t step) const {
    return central && (step + 1) % central->period() == 0;
  }
  void check_coordinator(const Communicator& user_comm) const;
  void join(std::span<float> params);
  void replay(std::span<float> params, std::span<const std::byte> record);
  void begin(std::span<float> params, std::span<const float> grads);
  void begin(std::span<float> params, std::span<const BFloat16> grads);
  void begin(std::span<float> params);
  void begin_with(std::span<float> params, ConstView grads);
  void tensor_ready(std::size_t tensor, bool is_unused);
  template <typename T>
  void tensor_ready(std::size_t tensor, std::span<const T> grad);
  void check_unreported(std::size_t tensor) const;
  void submit_tensor(std::size_t tensor, bool is_unused);
  StepReport finish();
  Traffic traffic() const;
  Traffic uncounted();  // since the last call
  template <typename T>
  StepReport whole_step(std::span<float> params, std::span<const T> grads,
                        std::span<const bool> unused_here);
  // Whatever a part of a step throws ends the step, and leaves momentum and parameters half done.
  template <typename Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const std::exception& e) {
      in_step = false;
      refusal = e.what();
      throw;
    }
  }
  void complete();
  void skip(const std::string& text, bool alone, StepReport& report);
  std::string describe(const NonFinite& seen, std::int64_t step) const;

  Communicator& caller;
  Layout layout;
  OptimizerOptions options;
  MethodInfo info;
  std::vector<GroupValues> groups;
  std::vector<std::int64_t> group_starts;  // the first step of each, for Adam's bias correction
  // duplicates: their traffic is the optimizer's alone
  std::vector<std::unique_ptr<Communicator>> comms;
  std::vector<Bucket> buckets;
  std::unique_ptr<Method> method;
  std::unique_ptr<Central> central;  // with a coordinator
  std::unique_ptr<Central> shadow;   // without, once a record was replayed
  std::vector<int> weights;          // votes of each rank; empty: one

  std::int64_t steps_done = 0;
  bool in_step = false;
  bool params_checked = false;  // all ranks began with the same
  std::string refusal;          // why no further step is taken; empty: steps are welcome

  // the step at hand
  StepContext ctx;
  std::span<float> params_of_step;
  std::vector<StepScalars> scalars;
  std::vector<char> unused;
  std::vector<char> reported;
  std::vector<std::vector<std::size_t>> buckets_of_tensor;
  std::vector<std::size_t> tensors_of_bucket;  // how many
  std::vector<std::size_t> waiting;            // of them not yet reported
  Traffic traffic_before;
  std::span<const BFloat16> narrow;  // gradients as the caller gave them, if in bfloat16 ...
  FlatBuffer wide;  // ... and as float32, tensor by tensor as they become ready; or gradients that
                    // lay apart, copied
  TensorPointers apart;  // where they lie, by tensor
  bool lie_apart = false;

  std::unique_ptr<Pipeline> pipeline;  // last: its thread reads all of the above until it is gone
};

}  // namespace pride
