// Chart: the numbers of a picture.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report/groups.h"

namespace pride::app {

struct Series {
  std::string name;
  int color = 0;                       // one a label of the section
  std::vector<double> x = {}, y = {};  // y: mean over the seeds
  std::vector<double> spread = {};     // standard deviation over the seeds; empty: none
};

struct ChartAxis {
  std::string label;  // with its unit
  bool log2 = false;
  double min = 0, max = 1;
  std::vector<double> ticks = {};  // empty: where the drawer likes
};

struct Chart {
  std::string id = {}, title = {}, note = {};
  bool points = false;  // points with names instead of lines
  ChartAxis x, y;
  std::vector<Series> series = {};
};

// In the order of the page: result against epochs, training loss, result against workers, against
// the batch, against bits. Those of which there is nothing to show are left out.
std::vector<Chart> charts_of(const Section& section);

// By its id: "loss" of the first section that has one, "s2-loss" of the second section; without an
// id the first of all. Throws InvalidArgument, with all ids, if there is none.
Chart chart_named(const std::vector<Section>& sections, const std::string& id);

// As JSON, one series a line, and back. chart_of throws DataError with what is wrong.
std::string json_of(const Chart& chart);
Chart chart_of(const std::string& json);

}  // namespace pride::app
