// Cell: one combination of an experiment's settings, but for the seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sweep/experiment.h"

namespace pride::app {

// Flags and values, sorted by flag.
using Point = std::vector<std::pair<std::string, std::string>>;

inline bool has_rate(const Point& point) {
  return std::ranges::any_of(point, [](const auto& one) { return one.first == "lr"; });
}

struct Cell {
  std::string label;
  FlagValues flags;   // of `pride train`, method included; no seed
  Point varied = {};  // of these, those in which cells of the label differ
  std::vector<std::uint64_t> seeds = {};
  std::vector<Point> tune_points = {};  // with [tune]: the points of its grid, and the number of
  std::vector<std::size_t> tune_sizes = {};  // values on each axis; the last changes fastest
};

// All cells, grid by grid, each once. `more`: flags of the command line, instead of the file's.
std::vector<Cell> cells_of(const Experiment& experiment, const FlagValues& more);

// Indices of tune_points: the middle of each axis, the lower of two; and those next to a point, by
// one value on one axis.
std::size_t middle_point(const Cell& cell);
std::vector<std::size_t> neighbours(const Cell& cell, std::size_t point);

// The flags with those of the point instead.
FlagValues with_point(FlagValues flags, const Point& point);

}  // namespace pride::app
