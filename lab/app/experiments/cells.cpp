// The cells of an experiment.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "experiments/experiment.h"
#include "pride/error.h"
#include "program/table.h"

namespace pride::app {
namespace {

constexpr double kMostRuns = 10'000;  // more would take minutes to list

// `axes`, overridden by the axes of `own`: by flag, and new flags at the end.
std::vector<Axis> replaced(std::vector<Axis> axes, const std::vector<Axis>& own) {
  for (const Axis& mine : own) {
    const auto at = std::ranges::find(axes, mine.flag, &Axis::flag);
    if (at != axes.end()) {
      *at = mine;
    } else {
      axes.push_back(mine);
    }
  }
  return axes;
}

// Sets a flag. --steps replaces --epochs, and vice versa.
void put(FlagValues& flags, const std::string& flag, std::vector<std::string> values) {
  if (flag == "steps") flags.erase("epochs");
  if (flag == "epochs") flags.erase("steps");
  flags[flag] = std::move(values);
}

// The number of points. An axis without values gets rates later; a climb tries up to kMostTrials.
double n_points(const std::vector<Axis>& axes) {
  double n = 1;
  for (const Axis& axis : axes) {
    n *= static_cast<double>(axis.values.empty() ? kMostTrials : axis.values.size());
  }
  return n;
}

OwnSettings own_of(const Experiment& experiment, const std::string& label) {
  const auto found = experiment.own.find(label);
  return found != experiment.own.end() ? found->second : OwnSettings{.method = label};
}

// Refuses an experiment with too many runs, with [tune], before memory for them is allocated.
void check_size(const Experiment& experiment) {
  double runs = 0;
  for (const Grid& grid : experiment.grids) {
    for (const std::string& label : grid.labels) {
      const OwnSettings own = own_of(experiment, label);
      double tuning = 0;
      if (experiment.tune) {
        const double points = n_points(replaced(experiment.tune->grid, own.tune));
        PRIDE_CHECK(points <= kMostRuns, experiment.where, ": [tune.grid] of ", label, " has ",
                    grouped(points), " points; it may have ", grouped(kMostRuns));
        tuning = experiment.tune->climb ? std::min<double>(points, kMostTrials) : points;
      }
      runs += n_points(replaced(grid.axes, own.axes)) *
              (static_cast<double>(grid.seeds.size()) + tuning);
    }
  }
  PRIDE_CHECK(runs <= kMostRuns, experiment.where, ": means ", grouped(runs),
              " runs; an experiment has at most ", grouped(kMostRuns));
}

// Flags in which the cells of a label differ, over all grids; also flags that only some cells have.
// `first`: a cell of the label.
std::set<std::string> differing(const std::vector<Cell>& cells, const Cell& first) {
  std::set<std::string> flags;
  const auto add_other = [&](const FlagValues& some, const FlagValues& others) {
    for (const auto& [flag, values] : some) {
      const auto other = others.find(flag);
      if (other == others.end() || other->second != values) flags.insert(flag);
    }
  };
  for (const Cell& cell : cells) {
    if (cell.label != first.label) continue;
    add_other(cell.flags, first.flags);
    add_other(first.flags, cell.flags);
  }
  return flags;
}

// Reduces cell.varied to the flags that distinguish the cell from others of its label: first axes,
// then other flags.
void name_by(std::set<std::string> flags, Cell& cell) {
  Point named;
  for (const auto& [flag, value] : cell.varied) {
    const auto found = cell.flags.find(flag);
    const bool has_it = found != cell.flags.end() && found->second.front() == value;
    if (flags.erase(flag) > 0 && has_it) named.emplace_back(flag, value);
  }
  for (const std::string& flag : flags) {
    const auto found = cell.flags.find(flag);
    if (found != cell.flags.end()) named.emplace_back(flag, found->second.front());
  }
  cell.varied = std::move(named);
}

}  // namespace

FlagValues with_point(FlagValues flags, const Point& point) {
  for (const auto& [flag, value] : point) put(flags, flag, {value});
  return flags;
}

std::vector<Cell> cells_of(const Experiment& experiment, const FlagValues& more) {
  check_size(experiment);
  std::vector<Cell> cells;
  std::map<std::pair<std::string, FlagValues>, std::size_t> places;
  for (const Grid& grid : experiment.grids) {
    for (const std::string& label : grid.labels) {
      const OwnSettings own = own_of(experiment, label);
      for (const Point& point : combinations(replaced(grid.axes, own.axes))) {
        Cell cell{.label = label, .flags = with_point(experiment.shared, point)};
        if (!own.options.empty()) cell.flags[kMethodOption] = own.options;
        for (const auto& [flag, values] : more) put(cell.flags, flag, values);
        cell.flags["method"] = {own.method};
        cell.varied = point;
        if (experiment.tune) cell.tune = replaced(experiment.tune->grid, own.tune);
        const auto [at, is_new] = places.try_emplace({cell.label, cell.flags}, cells.size());
        if (is_new) cells.push_back(std::move(cell));
        // a repeated cell has the seeds of both
        std::vector<std::uint64_t>& seeds = cells[at->second].seeds;
        for (const std::uint64_t seed : grid.seeds) {
          if (std::ranges::count(seeds, seed) == 0) seeds.push_back(seed);
        }
      }
    }
  }
  std::map<std::string, std::set<std::string>> flags;
  for (const Cell& cell : cells) {
    if (!flags.contains(cell.label)) flags[cell.label] = differing(cells, cell);
  }
  for (Cell& cell : cells) name_by(flags.at(cell.label), cell);
  return cells;
}

}  // namespace pride::app
