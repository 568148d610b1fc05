// The files of a checkpoint, and the check that they are unchanged.
// SPDX-License-Identifier: Apache-2.0
//
// checkpoint.json holds the facts of the run, the XXH3-64 of each other file's bytes ("files") and
// of itself without that entry ("checksum"), so that any changed bit is detected.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pride::train {

inline constexpr const char* kCheckpointFacts = "checkpoint.json";
inline constexpr const char* kPartial = ".partial";  // of a checkpoint that is being written

// The folder of a step's checkpoint, below OUT/checkpoints.
std::string checkpoint_name(std::int64_t step);
std::string state_name(int rank);

// Writes checkpoint.json, the last file of a checkpoint. Throws DataError.
void write_checkpoint_facts(const std::filesystem::path& folder, nlohmann::json facts);

// Throws DataError, naming the file, if it is missing, not JSON, or changed since it was saved.
nlohmann::json read_checkpoint_facts(const std::filesystem::path& folder);

// Throws DataError, naming the file, unless these files have the hashes in `facts`.
void check_checkpoint_files(const std::filesystem::path& folder, const nlohmann::json& facts,
                            const std::vector<std::string>& names);

// The checkpoints of --resume FOLDER, newest first: the folder itself if it is one, or those in an
// --out folder. Throws DataError if there is none.
std::vector<std::filesystem::path> find_checkpoints(const std::filesystem::path& folder);

// Gives a finished folder its name. At any moment the old or the new one is complete: an old one is
// moved aside and removed last.
void put_in_place(const std::filesystem::path& partial, const std::filesystem::path& place);

// Removes folders below `parent` that a stopped save has left: step-N.partial.
void remove_partial(const std::filesystem::path& parent);

// Removes all checkpoints below `parent` but the newest `keep` and the one of the lowest loss.
void keep_newest(const std::filesystem::path& parent, std::int64_t keep);

// Renames checkpoints of steps after `step` to <name>.dropped, because they belong to another
// course of the run. Returns their names.
std::vector<std::string> drop_later(const std::filesystem::path& parent, std::int64_t step);

}  // namespace pride::train
