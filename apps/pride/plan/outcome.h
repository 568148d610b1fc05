// A plan, and how it is told to people and programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/predict.h"

namespace pride::app {

// What a plan rests on.
struct PlanFacts {
  int world = 1;
  NetworkModel network;
  double params = 0;
  double compute_s = 0;
  double cores = 2;
  std::string transport;  // of what was measured; empty: the network is on paper
};

struct PlanRow {
  MethodModel method;
  bool dense = false;
  int buckets = 1;
  std::string route;  // of its buckets
  Prediction in_order, overlapped;
  double best_s() const { return std::min(in_order.step_s, overlapped.step_s); }
};

struct Plan {
  PlanFacts facts;
  std::vector<PlanRow> rows = {};
};

// One plan as a table on standard output, and as JSON.
void print(const Plan& plan);
nlohmann::ordered_json to_json(const Plan& plan);

// Plans for several numbers of ranks, by the methods in the order of their rows.
void print_scaling(const std::vector<Plan>& plans, const std::vector<std::string>& methods);
// Throws DataError if the file cannot be written. REQUIRES: two plans or more, ranks ascending.
void write_svg(const std::vector<Plan>& plans, const std::vector<std::string>& methods,
               const std::string& file);

}  // namespace pride::app
