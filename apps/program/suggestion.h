// The nearest known word.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace pride::inline program {

// "; did you mean --steps?", or nothing if no known word is near.
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

}  // namespace pride::inline program
