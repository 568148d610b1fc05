// The folder of a run's results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "pride/communicator.h"
#include "pride/train/options.h"

namespace pride::train {

// With options.overwrite the results in options.out go, unless the run resumes from that folder.
void remove_old_results(const TrainOptions& options);

// Throws InvalidArgument if options.out has results that check_out_folder() would have refused.
void check_no_new_results(const TrainOptions& options);

// Throws DataError on every rank, naming the first one that does not see what rank 0 writes into
// the folder: each rank's part of a checkpoint goes there. Collective.
void check_shared_folder(Communicator& comm, const std::filesystem::path& folder);

}  // namespace pride::train
