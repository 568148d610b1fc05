// How a step grows with the number of ranks, as a table and as a chart.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report/charts.h"

namespace pride::app {

// The shorter of the steps in order and overlapped that each method is predicted on `world` ranks.
struct WorldSteps {
  int world = 1;
  std::vector<double> step_s = {};  // in the order of the methods
};

// Share of a step that is forward and backward, in per cent: 100 is what a rank alone reaches
// without any arithmetic of a method. Batch and work of a rank stay the same (weak scaling).
inline double efficiency(double compute_s, double step_s) { return 100 * compute_s / step_s; }

// A row for each world, a column for each method: step time and efficiency.
std::string scaling_table(const std::vector<std::string>& methods, double compute_s,
                          const std::vector<WorldSteps>& worlds);

// Efficiency over the number of ranks. REQUIRES: two worlds or more, ascending.
Chart scaling_chart(const std::string& title, const std::vector<std::string>& methods,
                    double compute_s, const std::vector<WorldSteps>& worlds);

}  // namespace pride::app
