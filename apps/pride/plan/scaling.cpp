// SPDX-License-Identifier: Apache-2.0
#include "plan/scaling.h"

#include <cmath>

#include "plan/units.h"
#include "pride/error.h"
#include "text/table.h"

namespace pride::app {

std::string scaling_table(const std::vector<std::string>& methods, double compute_s,
                          const std::vector<WorldSteps>& worlds) {
  std::vector<std::vector<std::string>> table = {{"ranks"}};
  table[0].insert(table[0].end(), methods.begin(), methods.end());
  for (const WorldSteps& at : worlds) {
    std::vector<std::string> row = {grouped(at.world)};
    for (const double step_s : at.step_s) {
      row.push_back(
          concat(time_text(step_s), " (", std::round(efficiency(compute_s, step_s)), " %)"));
    }
    table.push_back(std::move(row));
  }
  return markdown_table(table, 1);
}

Chart scaling_chart(const std::string& title, const std::vector<std::string>& methods,
                    double compute_s, const std::vector<WorldSteps>& worlds) {
  PRIDE_CHECK(worlds.size() >= 2, "a chart over numbers of ranks needs two of them, not ",
              worlds.size());
  Chart chart{.id = "scaling",
              .title = title,
              .x = {.label = "ranks",
                    .log2 = true,
                    .min = static_cast<double>(worlds.front().world),
                    .max = static_cast<double>(worlds.back().world)},
              .y = {.label = "forward and backward, % of the step", .min = 0, .max = 100}};
  for (const WorldSteps& at : worlds) chart.x.ticks.push_back(at.world);
  for (std::size_t m = 0; m < methods.size(); ++m) {
    Series series{.name = methods[m], .color = static_cast<int>(m)};
    for (const WorldSteps& at : worlds) {
      series.x.push_back(at.world);
      series.y.push_back(efficiency(compute_s, at.step_s[m]));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace pride::app
