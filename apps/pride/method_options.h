// Options of a method as a command line holds them: "key=value".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace pride::app {

// Throws InvalidArgument on a text without a key or "=", and on a key that is given twice.
std::map<std::string, std::string> parse_method_options(const std::vector<std::string>& texts);

}  // namespace pride::app
