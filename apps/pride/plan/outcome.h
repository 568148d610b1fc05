// A plan, and how it is told to people and programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pride/plan.h"

namespace pride::app {

struct Plan {
  PlanFacts facts;
  std::vector<PlanRow> rows = {};
};

// Whether compression pays: the fastest compressed method against the fastest dense one, and what
// of it is arithmetic, if that makes a difference. Empty without one of either.
std::string verdict(const Plan& plan);

// One plan as a table on standard output, and as JSON.
void print(const Plan& plan);
nlohmann::ordered_json to_json(const Plan& plan);

// Plans for several numbers of ranks, by the methods in the order of their rows.
void print_scaling(const std::vector<Plan>& plans, const std::vector<std::string>& methods);
// Throws DataError if the file cannot be written. REQUIRES: two plans or more, ranks ascending.
void write_svg(const std::vector<Plan>& plans, const std::vector<std::string>& methods,
               const std::string& file);

}  // namespace pride::app
