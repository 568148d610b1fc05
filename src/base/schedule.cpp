// Learning-rate schedules.
// SPDX-License-Identifier: Apache-2.0
#include "pride/schedule.h"

#include <algorithm>
#include <numbers>

#include "pride/error.h"

namespace pride {
namespace {

// cos(pi x) by sums and products only: ranks compare rates, and their libraries may round std::cos
// differently.  REQUIRES: 0 <= x <= 1
double cos_pi(double x) {
  if (x > 0.5) return -cos_pi(1 - x);
  // Taylor series, the last term below 1e-17 at x = 1/2
  const double square = std::numbers::pi * x * (std::numbers::pi * x);
  double sum = 0;
  for (int k = 22; k > 0; k -= 2) sum = (1 - sum) * square / (k * (k - 1));
  return 1 - sum;
}

}  // namespace

ScheduleKind schedule_kind(std::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "cosine") return ScheduleKind::kCosine;
  if (name == "linear") return ScheduleKind::kLinear;
  throw InvalidArgument(concat("schedule '", name, "': choose constant, cosine or linear"));
}

double Schedule::factor(std::int64_t t) const {
  PRIDE_CHECK(t >= 0, "schedule: step ", t, ", must be 0 or more");
  PRIDE_CHECK(warmup_steps >= 0, "schedule: ", warmup_steps, " warm-up steps, must be 0 or more");
  if (t < warmup_steps) return static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  if (kind == ScheduleKind::kConstant) return 1;
  PRIDE_CHECK(total_steps > warmup_steps, "schedule: ", total_steps,
              " steps in all, must be more than the ", warmup_steps, " warm-up steps");

  const double done = std::min(
      1.0, static_cast<double>(t - warmup_steps) / static_cast<double>(total_steps - warmup_steps));
  const double fall = kind == ScheduleKind::kCosine ? 0.5 * (1 + cos_pi(done)) : 1 - done;
  return final_factor + (1 - final_factor) * fall;
}

}  // namespace pride
