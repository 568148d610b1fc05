// Held steps: nothing is applied before every bucket is known to be finite.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "optimizer/pipeline.h"
#include "optimizer/reporting.h"

namespace pride {

// Ends a held step, after all buckets were exchanged. `first`: the non-finite flag, if any.
std::optional<NonFinite> Pipeline::end_held(std::optional<NonFinite> first) {
  std::array<double, 2> sums = {0, first ? 1.0 : 0.0};
  if (clip_ > 0 && !first) {
    const Stopwatch watch(timing_.apply_s);
    for (const SectionStep& step : steps_) sums[0] += step.buckets.mean_squares(flights_);
  }
  if (model_parallel_sum_) {
    const Stopwatch watch(timing_.exchange_s);
    model_parallel_sum_(sums);
    if (!first && sums[1] > 0) first = NonFinite{.rank = NonFinite::kModelParallel};
  }
  if (first) return first;
  grad_norm_ = std::sqrt(sums[0]);
  if (clip_ > 0 && grad_norm_ > clip_) {
    for (SectionStep& step : steps_) step.ctx.grad_scale = static_cast<float>(clip_ / grad_norm_);
  }
  for (std::size_t b = 0; b < n_buckets(); ++b) apply(b);
  return std::nullopt;
}

std::optional<NonFinite> Pipeline::apply_held() {
  std::optional<NonFinite> first;
  for (std::size_t b = 0; b < n_buckets(); ++b) {
    wait_for_result(b);
    if (!first) first = flight_of(b).non_finite;
  }
  return end_held(first);
}

}  // namespace pride
