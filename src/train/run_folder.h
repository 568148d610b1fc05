// The folder of a run's results, and what its summary.json says of the last evaluation: numbers, or
// why they are no result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/error.h"
#include "pride/train/options.h"

namespace pride::train {

// For a run that begins at `step`: with options.overwrite the results in options.out go, unless it
// resumes from that folder; then the checkpoints of another course of it get another name, and a
// note. Throws InvalidArgument if there are results that check_out_folder() would have refused.
void make_room(const TrainOptions& options, std::int64_t step, std::vector<std::string>& notes);

// TensorBoard's event files in a folder, those of earlier runs, by their names.
std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder);

// Throws DataError on every rank, naming the first one that does not see what rank 0 writes into
// the folder: each rank's part of a checkpoint goes there. Collective.
void check_shared_folder(Communicator& comm, const std::filesystem::path& folder);

// Copies the metrics that are numbers into `numbers`. Returns why the run diverged, or nothing: a
// metric is null, as JSON has it, if it is not finite. That of the last step alone, train_loss, may
// be one of a step that was skipped. Throws what `Json` throws if `metrics` is no object.
template <typename Json>
std::string read_final_metrics(const Json& metrics, std::map<std::string, double>& numbers) {
  std::string diverged;
  for (const auto& [name, value] : metrics.items()) {
    if (value.is_number()) numbers[name] = value;
    if (value.is_null() && name != "train_loss") {
      diverged = concat("diverged: the final ", name, " is not finite");
    }
  }
  return diverged;
}

}  // namespace pride::train
