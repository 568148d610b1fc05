// The Serving of a run: its method from the registry, for a world of one, and CentralRound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coord/serving.h"

namespace pride::coord {

// A MakeServing.
std::unique_ptr<Serving> make_central_serving(const RunDescription& run);

}  // namespace pride::coord
