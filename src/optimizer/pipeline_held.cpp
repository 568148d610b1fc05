// Held steps: nothing is applied before every bucket is known to be finite.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "kernels/kernels.h"
#include "optimizer/pipeline.h"
#include "optimizer/reporting.h"

namespace pride {

// Sums words of 64 coordinates in the order of the layout, so that the sum does not depend on the
// buckets. Bucket 0 is the layout's end.
double mean_gradient_squares(const Method& method, std::span<const Bucket> buckets,
                             std::span<const Flight> flights) {
  double squares = 0;
  for (std::size_t b = buckets.size(); b-- > 0;) {
    method.visit_mean_gradient(buckets[b], flights[b], [&](std::span<const float> g) {
      for (std::size_t i = 0; i < g.size(); i += kAlignment) {
        squares += kernels::sum_squares(g.subspan(i, kAlignment));
      }
    });
  }
  return squares;
}

// Ends a held step, after all buckets were exchanged. `first`: the non-finite flag, if any.
std::optional<NonFinite> Pipeline::end_held(std::optional<NonFinite> first) {
  std::array<double, 2> sums = {0, first ? 1.0 : 0.0};
  if (clip_ > 0 && !first) {
    const Stopwatch watch(timing_.apply_s);
    sums[0] = mean_gradient_squares(method_, buckets_, flights_);
  }
  if (sum_of_parts_) {
    const Stopwatch watch(timing_.exchange_s);
    sum_of_parts_(sums);
    if (!first && sums[1] > 0) first = NonFinite{.rank = NonFinite::kPart};
  }
  if (first) return first;
  grad_norm_ = std::sqrt(sums[0]);
  if (clip_ > 0 && grad_norm_ > clip_) ctx_->grad_scale = static_cast<float>(clip_ / grad_norm_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) apply(b);
  return std::nullopt;
}

std::optional<NonFinite> Pipeline::apply_held() {
  std::optional<NonFinite> first;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    wait_for_result(b);
    if (!first) first = flight_of(b).non_finite;
  }
  return end_held(first);
}

}  // namespace pride
