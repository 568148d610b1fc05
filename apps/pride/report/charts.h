// Chart: the numbers of a picture.
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

// A range too narrow for distinct ticks in double.
bool is_narrow(double low, double high);

struct Chart {
  std::string id = {}, title = {}, note = {};
  bool points = false;  // points with names instead of lines
  ChartAxis x, y;
  std::vector<Series> series = {};
};

// How the curves of a report are drawn.
struct Look {
  std::string x = "epoch";  // or "step", "time", "bytes"
  bool log_y = false;       // if all values are above 0
  std::string link = {};    // "10Mbit/s", with x = "time": a step takes as long as it computed, and
                            // its bytes over such a link; empty: as long as it took
};

// In the order of the page: result over the run, training loss, learning rate, norm of the
// gradient, result against workers, against the batch, against bits. Charts with a single point are
// left out.
std::vector<Chart> charts_of(const Section& section, const Look& look = {});

// By its id: "loss" of the first section that has one, "s2-loss" of the second section; without an
// id the first of all. Throws InvalidArgument, with all ids, if there is none.
Chart chart_named(const std::vector<Section>& sections, const std::string& id,
                  const Look& look = {});

// As JSON, one series a line, and back. chart_of throws DataError with what is wrong.
std::string json_of(const Chart& chart);
Chart chart_of(const std::string& json);

}  // namespace pride::app
