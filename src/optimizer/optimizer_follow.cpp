// For ranks that divide a model: results of this rank's step, and results of other ranks.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/follower.h"
#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {

std::optional<int> Optimizer::follow(Layout layout) {
  Impl& all = *impl_;
  PRIDE_CHECK(!all.in_step, "optimizer: follow() in the middle of a step");
  PRIDE_CHECK(!all.central && !all.workers,
              "optimizer: follow() with a coordinator or virtual workers, which have whole models");
  if (!results_suffice(*all.method, all.world())) return std::nullopt;
  auto part = std::make_unique<Follower>(std::move(layout), all.options, all.world(), all.space);
  // checks both layouts: a method may synchronise only some tensors, and all ranks must agree
  if (!part->suffices(all.world())) return std::nullopt;
  all.followers.push_back(std::move(part));
  all.pipeline->keep_results(
      [&all](const Flight& flight) { append_results(all.layout, all.ctx, flight, all.results); });
  return static_cast<int>(all.followers.size()) - 1;
}

Follower& Optimizer::Impl::follower(int part, const char* call) const {
  PRIDE_CHECK(!in_step, "optimizer: ", call, "() in the middle of a step");
  PRIDE_CHECK(part >= 0 && static_cast<std::size_t>(part) < followers.size(), "optimizer: ", call,
              "(): part ", part, " of ", followers.size());
  PRIDE_CHECK(!scalars.empty(), "optimizer: ", call, "() before the first step");
  return *followers[static_cast<std::size_t>(part)];
}

std::span<const std::byte> Optimizer::results() const {
  PRIDE_CHECK(!impl_->in_step, "optimizer: results() in the middle of a step");
  return impl_->results;
}

std::size_t Optimizer::result_bytes(int part) const {
  return impl_->follower(part, "result_bytes").bytes(impl_->ctx);
}

void Optimizer::apply_results(int part, const Parameters& params, std::span<const bool> frozen,
                              std::span<const std::byte> results) {
  Follower& follower = impl_->follower(part, "apply_results");
  impl_->space.after(impl_->options.stream);
  follower.apply(params, frozen, impl_->ctx, results);
  impl_->space.before(impl_->options.stream);
}

}  // namespace pride
