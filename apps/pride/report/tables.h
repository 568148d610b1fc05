// The parts of a report that need no script: tables, bars and settings, as HTML.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report/groups.h"

namespace pride::app {

// One row a group, its best results marked, in a box that scrolls by itself.
std::string results_table_html(const Section& section);

// One bar a group: backward, encode, exchange, apply, the rest.
std::string stage_bars(const Section& section);

std::string shared_settings(const Section& section);

// One row a run: what differs, hash of the parameters, command.
std::string run_table(const Section& section);

}  // namespace pride::app
