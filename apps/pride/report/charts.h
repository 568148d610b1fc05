// Chart: the numbers and labels of a figure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report/groups.h"

namespace pride::app {

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

// Options of the curves of a report.
struct Look {
  std::string x = "epoch";  // or "step", "time", "bytes"
  bool log_y = false;       // logarithmic, in charts with only positive values
  std::string link = {};    // "10Mbit/s", with x = "time": a step takes its computing time plus its
                            // bytes over this link; empty: its measured time
};

// The charts in the order of the page: result over the run, training loss, learning rate, norm of
// the gradient, result against workers, against the batch, against bits. Charts with a single point
// are left out.
std::vector<Chart> charts_of(const Section& section, const Look& look = {});

// The chart with this id: "loss" in the first section that has it, "s2-loss" in the second section;
// "": the first chart. Throws InvalidArgument, listing the ids, if there is none.
Chart chart_named(const std::vector<Section>& sections, const std::string& id,
                  const Look& look = {});

// A chart as JSON, one series per line, and back. chart_of throws DataError, naming the fault.
std::string json_of(const Chart& chart);
Chart chart_of(const std::string& json);

}  // namespace pride::app
