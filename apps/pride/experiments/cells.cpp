// SPDX-License-Identifier: Apache-2.0
#include "experiments/cells.h"

#include <algorithm>
#include <set>

namespace pride::app {
namespace {

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

// A value of --steps takes the place of one of --epochs, and the other way round.
void put(FlagValues& flags, const std::string& flag, std::vector<std::string> values) {
  if (flag == "steps") flags.erase("epochs");
  if (flag == "epochs") flags.erase("steps");
  flags[flag] = std::move(values);
}

// Flags in which cells of the label differ, whichever grid they are of; one that only some have,
// too.
std::set<std::string> differing(const std::vector<Cell>& cells, const std::string& label) {
  std::set<std::string> flags;
  const Cell* first = nullptr;
  const auto compare = [&](const FlagValues& some, const FlagValues& others) {
    for (const auto& [flag, values] : some) {
      const auto found = others.find(flag);
      if (found == others.end() || found->second != values) flags.insert(flag);
    }
  };
  for (const Cell& cell : cells) {
    if (cell.label != label) continue;
    if (first == nullptr) first = &cell;
    compare(cell.flags, first->flags);
    compare(first->flags, cell.flags);
  }
  return flags;
}

// Leaves in `varied`, which has the cell's point, what tells it from others of its label: those of
// its axes first, then what it has from elsewhere.
void name_by(const std::set<std::string>& flags, Cell& cell) {
  Point named;
  std::set<std::string> rest = flags;
  for (const auto& value : cell.varied) {
    const auto found = cell.flags.find(value.first);
    const bool has_it = found != cell.flags.end() && found->second.front() == value.second;
    if (rest.erase(value.first) > 0 && has_it) named.push_back(value);
  }
  for (const std::string& flag : rest) {
    const auto found = cell.flags.find(flag);
    if (found != cell.flags.end()) named.emplace_back(flag, found->second.front());
  }
  cell.varied = std::move(named);
}

// Adds the cell, or its seeds to the one that it repeats.
void add(Cell cell, std::vector<Cell>& cells) {
  const auto same = [&](const Cell& c) { return c.label == cell.label && c.flags == cell.flags; };
  const auto known = std::ranges::find_if(cells, same);
  if (known == cells.end()) return cells.push_back(std::move(cell));
  for (const std::uint64_t seed : cell.seeds) {
    if (std::ranges::find(known->seeds, seed) == known->seeds.end()) known->seeds.push_back(seed);
  }
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
        cell.varied = point;
        cell.seeds = grid.seeds;
        if (experiment.tune) cell.tune = replaced(experiment.tune->grid, own.tune);
        add(std::move(cell), cells);
      }
    }
  }
  std::map<std::string, std::set<std::string>> flags;
  for (const Cell& cell : cells) {
    if (!flags.contains(cell.label)) flags[cell.label] = differing(cells, cell.label);
  }
  for (Cell& cell : cells) name_by(flags.at(cell.label), cell);
  return cells;
}

}  // namespace pride::app
