// Learning-rate schedules.
// SPDX-License-Identifier: Apache-2.0
#include "pride/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pride/error.h"

namespace pride {

ScheduleKind schedule_kind(std::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "cosine") return ScheduleKind::kCosine;
  if (name == "linear") return ScheduleKind::kLinear;
  throw InvalidArgument(concat("schedule '", name, "': choose constant, cosine or linear"));
}

double Schedule::factor(std::int64_t t) const {
  PRIDE_CHECK(t >= 0, "schedule: step ", t);
  PRIDE_CHECK(warmup_steps >= 0, "schedule: ", warmup_steps, " warm-up steps");
  if (t < warmup_steps) return static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  if (kind == ScheduleKind::kConstant) return 1;
  PRIDE_CHECK(total_steps > warmup_steps, "schedule: ", total_steps, " steps in all, ",
              warmup_steps, " of them warm-up");

  const double done = std::min(
      1.0, static_cast<double>(t - warmup_steps) / static_cast<double>(total_steps - warmup_steps));
  const double fall =
      kind == ScheduleKind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return final_factor + (1 - final_factor) * fall;
}

}  // namespace pride
