// Chart: the numbers and labels of a figure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace pride::inline program {

struct Series {
  std::string name;
  int color = 0;                       // one per row of the section
  std::vector<double> x = {}, y = {};  // y: mean over the seeds
  std::vector<double> spread = {};     // standard deviation over the seeds; empty: none
};

struct ChartAxis {
  std::string label;  // with its unit
  bool log2 = false;  // logarithmic
  double min = 0, max = 1;
  std::vector<double> ticks = {};  // empty: chosen by the drawer
};

// True if a range is too narrow for distinct ticks in double.
bool is_narrow(double low, double high);

struct Chart {
  std::string id = {}, title = {}, note = {};
  bool points = false;  // points with names instead of lines
  ChartAxis x, y;
  std::vector<Series> series = {};
};

// A chart as JSON, one series per line, and back. chart_of throws DataError, naming the fault.
std::string json_of(const Chart& chart);
Chart chart_of(const std::string& json);

}  // namespace pride::inline program
