// A plan, and its output as text, JSON and charts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pride/plan.h"
#include "program/chart.h"

namespace pride::inline program {

// The ranks on which forward and backward were measured; none: the times were given.
struct Measured {
  int ranks = 0, cores = 0;  // of this machine
};

struct Plan {
  PlanFacts facts;
  std::vector<PlanRow> rows = {};
  Measured measured = {};
  bool has_groups = false;  // some tensors have other methods than their rows: --groups
};

// A text that says whether compression pays: the fastest compressed method against the fastest
// dense one, and the share of arithmetic, if it matters. Empty unless both exist.
std::string verdict(const Plan& plan);

// The highest goodput of a rank, in bytes per second, at which compression pays by the verdict's
// rule, with all else as in the plan; 0: at none.
double pays_up_to(const Plan& plan);

// Limits of the numbers, one per line; empty: none.
std::string notes_on(const Plan& plan);

// One plan as a table on standard output, and as JSON.
void print(const Plan& plan);
nlohmann::ordered_json to_json(const Plan& plan);

// Plans for several numbers of ranks with the same methods: step time and efficiency with one row
// per number and one column per method, and efficiency over the number of ranks. A step is the
// shorter of in order and overlapped. REQUIRES of the chart: two plans or more, ascending.
std::string scaling_table(const std::vector<Plan>& plans);
Chart scaling_chart(const std::vector<Plan>& plans);
void print_scaling(const std::vector<Plan>& plans);
// Throws DataError if the file cannot be written.
void write_svg(const std::vector<Plan>& plans, const std::string& file);

}  // namespace pride::inline program
