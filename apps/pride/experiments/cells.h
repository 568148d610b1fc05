// Cell: one combination of an experiment's settings, but for the seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "experiments/experiment.h"

namespace pride::app {

inline bool has_rate(const Point& point) {
  return std::ranges::any_of(point, [](const auto& one) { return one.first == "lr"; });
}

struct Cell {
  std::string label;
  FlagValues flags;   // of `pride train`, method included; no seed
  Point varied = {};  // of these, those in which cells of the label differ
  std::vector<std::uint64_t> seeds = {};
  std::vector<Axis> tune = {};  // with [tune]: the grid
};

// All cells, grid by grid, each once. `more`: flags of the command line, instead of the file's.
std::vector<Cell> cells_of(const Experiment& experiment, const FlagValues& more);

// The flags with those of the point instead.
FlagValues with_point(FlagValues flags, const Point& point);

}  // namespace pride::app
