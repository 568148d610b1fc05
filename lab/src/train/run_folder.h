// The folder of a run's results, and the final metrics in summary.json: numbers, or the reason why
// the run diverged.
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

// For a run that begins at `step`: with options.overwrite removes the results in options.out. If it
// resumes from that folder, renames the checkpoints of another course and adds a note instead.
// Throws InvalidArgument if there are results that check_out_folder() would have refused.
void make_room(const TrainOptions& options, std::int64_t step, std::vector<std::string>& notes);

// TensorBoard's event files in a folder, recognised by their names.
std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder);

// Throws DataError on every rank, naming the first one that does not see rank 0's file in the
// folder: each rank writes its part of a checkpoint there. Collective.
void check_shared_folder(Communicator& comm, const std::filesystem::path& folder);

// Copies the metrics that are numbers into `numbers`. Returns why the run diverged; empty: it did
// not. JSON has null for a metric that is not finite. train_loss alone may be null: the last step
// may have been skipped. Throws what `Json` throws if `metrics` is no object.
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
