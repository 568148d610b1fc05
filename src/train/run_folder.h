// The folder of a run's results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/train/options.h"

namespace pride::train {

// With options.overwrite the results in options.out go, unless the run resumes from that folder.
void remove_old_results(const TrainOptions& options);

// Throws InvalidArgument if options.out has results that check_out_folder() would have refused.
void check_no_new_results(const TrainOptions& options);

}  // namespace pride::train
