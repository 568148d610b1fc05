// Learning-rate schedules: the factor on the base rate at each step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace pride {

enum class ScheduleKind { kConstant, kCosine, kLinear };

// Throws InvalidArgument, listing the names, unless "constant", "cosine" or "linear".
ScheduleKind schedule_kind(std::string_view name);

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  std::int64_t total_steps = 0;   // the factor reaches final_factor at this step
  std::int64_t warmup_steps = 0;  // linear rise from 1/warmup to 1 over the first steps
  double final_factor = 0;        // of the base rate, for cosine and linear

  // Factor for step t = 0, 1, ...: (t + 1) / warmup_steps while t < warmup_steps. Then kConstant
  // stays at 1; kCosine and kLinear fall to final_factor at total_steps and stay there. Throws
  // InvalidArgument if t < 0, or total_steps <= warmup_steps for cosine and linear.
  double factor(std::int64_t t) const;
};

}  // namespace pride
