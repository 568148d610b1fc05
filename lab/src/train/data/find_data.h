// The place of a task's data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace pride::train {

// `flag`, or $PRIDE_DATA if the flag is empty. Throws DataError, naming the task and the `files` of
// such a folder, if neither is set; InvalidArgument if $PRIDE_DATA is not UTF-8. Does not check
// that the path exists.
std::filesystem::path find_data(const std::string& flag, const std::string& task,
                                const std::string& files);

}  // namespace pride::train
