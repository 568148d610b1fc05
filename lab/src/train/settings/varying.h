// --vary: values of the groups of --method that change over the run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pride/replica.h"

namespace pride::train {

// One entry of --vary.
struct Varying {
  struct Point {
    double at = 0;          // a step, or a share of the run
    bool is_share = false;  // of the run
    double value = 0;
  };

  std::string name;
  std::optional<double> ParamGroup::*member = nullptr;
  std::vector<Point> points = {};  // not empty
  bool cosine = false;             // half a cosine from point to point; false: linear

  // Throws InvalidArgument if in a run of this many steps the points do not ascend.
  void check(std::int64_t steps) const;
  // The value of step t = 0, 1, ...: that of the first point up to it, that of the last from it on.
  double at(std::int64_t step, std::int64_t steps) const;
};

// "NAME=VALUE@STEP,VALUE@STEP,... [cosine]", several entries separated by ';'. Throws
// InvalidArgument, naming the entry, on another form. The optimizer checks limits.
std::vector<Varying> parse_varying(const std::string& text);

}  // namespace pride::train
