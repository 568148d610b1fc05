// Optimizer::Impl: ranks of a communicator, whose steps go through a Pipeline.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "optimizer/pipeline.h"
#include "optimizer/replica_impl.h"
#include "pride/optimizer.h"

namespace pride {

struct Optimizer::Impl final : Replica::Impl {
  // Collective.
  static std::unique_ptr<Impl> make(Communicator& comm, Layout layout, OptimizerOptions options);
  Impl(Communicator& comm, Layout the_layout, OptimizerOptions the_options);
  void connect();  // collective

  int rank() const override { return caller.rank(); }
  void complete() override;
  void before_load() noexcept override { pipeline->discard(); }
  void agree(Call call, const std::function<Settings()>& body) override;
  void check_parameters() override;
  std::size_t frame_bytes() const override;
  void move_server_state(std::size_t section, std::span<const Bucket> from) override;
  bool skips_non_finite() const override {
    return Replica::Impl::skips_non_finite() || loss_scale.used;
  }
  void fail_others(const std::string& why) override { caller.fail(why); }
  bool has_applied_nothing() const override { return pipeline->has_applied_nothing(); }

  std::vector<std::int64_t> check_ranks_agree();
  void broadcast(const Parameters& params);
  void begin(const Parameters& params, const std::optional<Gradients>& grads);
  Steps& steps() { return workers.front(); }
  void set_gradients(const std::optional<Gradients>& grads);
  void tensor_ready(std::size_t tensor, const std::optional<ConstTensor>& grad);
  void submit_tensor(std::size_t tensor, bool is_unused);
  std::vector<std::size_t> take_released();
  StepReport finish();
  Traffic traffic() const;
  Traffic uncounted();  // since the last call

  Communicator& caller;
  // duplicates, so that their counters have only the optimizer's traffic
  std::vector<std::unique_ptr<Communicator>> comms;
  struct LossScale {
    bool used = false;              // a step that is not finite is skipped and does not count
    const float* factor = nullptr;  // null: 1
  };
  LossScale next_scale;
  std::vector<const std::vector<Flight>*> followers;  // the flights of each
  std::vector<std::byte> results;                     // of the last step, once there is a follower

  // of the current step
  LossScale loss_scale;
  std::vector<char> reported;
  std::vector<char> released;  // by tensor: take_released() has returned it
  std::vector<std::vector<std::size_t>> buckets_of_tensor;
  std::vector<std::size_t> tensors_of_bucket;  // their number
  std::vector<std::size_t> waiting;            // by bucket: tensors not yet reported
  Traffic traffic_before;
  bool one_by_one = false;  // each gradient is given when it is ready

  std::unique_ptr<Pipeline> pipeline;  // last: its threads read the members above until destroyed
};

}  // namespace pride
