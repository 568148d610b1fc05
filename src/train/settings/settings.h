// Start-up check of a job of several processes: was every one asked for the same?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pride/communicator.h"

namespace pride::train {

using Settings = std::vector<std::pair<std::string, std::string>>;  // name, value as text

// Throws InvalidArgument on all ranks, naming the first setting that differs and the ranks that
// differ from rank 0, or the ranks that have settings of other names. Collective.
void check_same_settings(Communicator& comm, const Settings& settings);

}  // namespace pride::train
