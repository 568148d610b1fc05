// The charts of a report.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "program/chart.h"
#include "report/groups.h"

namespace pride::app {

// Options of the curves of a report.
struct Look {
  // "epoch", "step", "time" or "bytes"; empty: "epoch", or "step" if a run does not say its epochs
  std::string x = {};
  bool log_y = false;     // logarithmic, in charts with only positive values
  std::string link = {};  // "10Mbit/s", with x = "time": a step takes its computing time plus its
                          // bytes over this link; empty: its measured time
};

// The charts in the order of the page: result over the run, training loss, learning rate, norm of
// the gradient, result against workers, against the batch, against bits. Charts with a single point
// are left out. Throws InvalidArgument, naming the run, if a run has no value for look.x.
std::vector<Chart> charts_of(const Section& section, const Look& look = {});

// The chart with this id: "loss" in the first section that has it, "s2-loss" in the second section;
// "": the first chart. Throws InvalidArgument, listing the ids, if there is none.
Chart chart_named(const std::vector<Section>& sections, const std::string& id,
                  const Look& look = {});

}  // namespace pride::app
