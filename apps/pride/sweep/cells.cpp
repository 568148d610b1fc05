// SPDX-License-Identifier: Apache-2.0
#include "sweep/cells.h"

#include <algorithm>

namespace pride::app {
namespace {

// Every combination of the axes; the last one changes fastest.
std::vector<Point> combinations(const std::vector<Axis>& axes) {
  std::vector<Point> points = {{}};
  for (const Axis& axis : axes) {
    std::vector<Point> longer;
    for (const Point& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().emplace_back(axis.flag, value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

// `axes`, with those of `own` in place of the ones of the same flag, or after them.
std::vector<Axis> replaced(std::vector<Axis> axes, const std::vector<Axis>& own) {
  for (const Axis& mine : own) {
    const auto same = [&](const Axis& axis) { return axis.flag == mine.flag; };
    const auto at = std::find_if(axes.begin(), axes.end(), same);
    if (at != axes.end()) {
      *at = mine;
    } else {
      axes.push_back(mine);
    }
  }
  return axes;
}

bool is_varied(const std::vector<Axis>& axes, const std::string& flag) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const Axis& axis) { return axis.flag == flag && axis.values.size() > 1; });
}

// A value of --steps takes the place of one of --epochs, and the other way round.
void put(FlagValues& flags, const std::string& flag, std::vector<std::string> values) {
  if (flag == "steps") flags.erase("epochs");
  if (flag == "epochs") flags.erase("steps");
  flags[flag] = std::move(values);
}

}  // namespace

FlagValues with_point(FlagValues flags, const Point& point) {
  for (const auto& [flag, value] : point) put(flags, flag, {value});
  return flags;
}

std::vector<Cell> cells_of(const Experiment& experiment, const FlagValues& more) {
  std::vector<Cell> cells;
  for (const Grid& grid : experiment.grids) {
    for (const std::string& label : grid.labels) {
      const auto found = experiment.own.find(label);
      const OwnSettings own =
          found != experiment.own.end() ? found->second : OwnSettings{.method = label};
      const std::vector<Axis> axes = replaced(grid.axes, own.axes);
      for (const Point& point : combinations(axes)) {
        Cell cell{.label = label, .flags = with_point(experiment.shared, point)};
        if (!own.options.empty()) cell.flags["method-opt"] = own.options;
        for (const auto& [flag, values] : more) put(cell.flags, flag, values);
        cell.flags["method"] = {own.method};
        for (const auto& value : point) {
          if (is_varied(axes, value.first) && !more.contains(value.first)) {
            cell.varied.push_back(value);
          }
        }
        cell.seeds = grid.seeds;
        if (experiment.tune) {
          cell.tune_points = combinations(replaced(experiment.tune->grid, own.tune));
        }
        cells.push_back(std::move(cell));
      }
    }
  }
  return cells;
}

}  // namespace pride::app
