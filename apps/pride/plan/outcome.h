// A plan, and how it is told to people and programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pride/plan.h"
#include "report/charts.h"

namespace pride::app {

// Where forward and backward were measured; no ranks: they were not, but given.
struct Measured {
  int ranks = 0, cores = 0;  // of this machine
};

struct Plan {
  PlanFacts facts;
  std::vector<PlanRow> rows = {};
  Measured measured = {};
};

// Whether compression pays: the fastest compressed method against the fastest dense one, and what
// of it is arithmetic, if that makes a difference. Empty without one of either.
std::string verdict(const Plan& plan);

// The goodput of a rank, in bytes per second, up to which compression pays as the verdict means it,
// all else being as in the plan; 0: it never does.
double pays_up_to(const Plan& plan);

// What the numbers do not hold for, a line each; empty if there is nothing to say.
std::string notes_on(const Plan& plan);

// One plan as a table on standard output, and as JSON.
void print(const Plan& plan);
nlohmann::ordered_json to_json(const Plan& plan);

// Plans for several numbers of ranks, each of the same methods: step time and efficiency with a row
// for each number and a column for each method, and efficiency over the number of ranks. A step is
// the shorter of those in order and overlapped. REQUIRES of the chart: two plans or more,
// ascending.
std::string scaling_table(const std::vector<Plan>& plans);
Chart scaling_chart(const std::vector<Plan>& plans);
void print_scaling(const std::vector<Plan>& plans);
// Throws DataError if the file cannot be written.
void write_svg(const std::vector<Plan>& plans, const std::string& file);

}  // namespace pride::app
