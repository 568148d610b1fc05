// Lines of JSON that a PyTorch program wrote about its run, read as a RunData.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report/run_data.h"

namespace pride::app {

// Adds the run of "FILE" or "NAME=FILE". The keys of the lines: lab/docs/report.md. Without a NAME
// the run's label is its method if the file has a seed, too, else the file's name. Throws DataError
// with file and line if a line is not what the page says, InvalidArgument if the file was added
// already.
void load_metrics(const std::string& argument, Loaded& into);

}  // namespace pride::app
