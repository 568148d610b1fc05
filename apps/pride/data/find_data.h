// Where a task's data lies: the --data flag, then $PRIDE_DATA.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace pride::app {

// For "cifar10" and "imagenet": `flag`, or $PRIDE_DATA if the flag is empty; throws DataError,
// saying how to get the data, if neither is set. For "lm": `flag`; an empty path means the default
// text. For "fewshot": `flag`; throws DataError if it is empty.
// Throws InvalidArgument on any other task. Does not look whether the path exists.
std::filesystem::path find_data(const std::string& flag, std::string_view task);

}  // namespace pride::app
