// The optimizer as its users see it, and its state.
// SPDX-License-Identifier: Apache-2.0
#include "pride/optimizer.h"

#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {
Optimizer::Optimizer(Communicator& comm, Layout layout, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(comm, std::move(layout), std::move(options))) {}
Optimizer::~Optimizer() = default;

StepReport Optimizer::step(std::span<float> params, std::span<const float> grads,
                           std::span<const bool> unused) {
  return impl_->whole_step(params, grads, unused);
}
StepReport Optimizer::step(std::span<float> params, std::span<const BFloat16> grads,
                           std::span<const bool> unused) {
  return impl_->whole_step(params, grads, unused);
}

void Optimizer::begin_step(std::span<float> params, std::span<const float> grads) {
  impl_->begin(params, grads);
}
void Optimizer::begin_step(std::span<float> params, std::span<const BFloat16> grads) {
  impl_->begin(params, grads);
}
void Optimizer::gradient_ready(std::size_t tensor, bool unused) {
  impl_->tensor_ready(tensor, unused);
}
StepReport Optimizer::finish_step() { return impl_->finish(); }

void Optimizer::set_lr(double lr, int group) {
  PRIDE_CHECK(group >= 0 && static_cast<std::size_t>(group) < impl_->groups.size(),
              "set_lr: group ", group, " of ", impl_->groups.size());
  GroupValues& values = impl_->groups[static_cast<std::size_t>(group)];
  check_lr(lr, values.weight_decay, group);
  values.lr = lr;
}

double Optimizer::lr(int group) const {
  PRIDE_CHECK(group >= 0 && static_cast<std::size_t>(group) < impl_->groups.size(), "lr: group ",
              group, " of ", impl_->groups.size());
  return impl_->groups[static_cast<std::size_t>(group)].lr;
}

const Layout& Optimizer::layout() const noexcept { return impl_->layout; }
std::int64_t Optimizer::steps_done() const noexcept { return impl_->steps_done; }
std::string_view Optimizer::method() const noexcept { return impl_->options.method; }
std::uint64_t Optimizer::state_floats() const noexcept { return impl_->method->state().floats(); }

Cost Optimizer::cost(std::int64_t step) const {
  const Communicator& comm = *impl_->comms.front();
  return step_costs(*impl_->method, impl_->buckets, {.step = step, .voters = comm.size()},
                    impl_->options.nodes)[static_cast<std::size_t>(comm.rank())];
}

std::map<std::string, int> Optimizer::routes() const {
  std::map<std::string, int> routes;
  const Round round{.step = impl_->steps_done, .voters = impl_->comms.front()->size()};
  for (const Bucket& bucket : impl_->buckets) {
    const auto parts = impl_->method->parts(bucket, round);
    if (round.voters > 1) ++routes[std::string(route_name(main_route(parts)))];
  }
  return routes;
}

}  // namespace pride
