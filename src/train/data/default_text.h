// Removal of licence headers from source text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace pride::train {

// `source` without those of its leading comment blocks that speak of copyright, licence, warranty
// or free software. A block is one /* */ comment or // lines without a blank line between them;
// the first line that is neither comment nor blank ends the search.
std::string strip_licence(std::string_view source);

}  // namespace pride::train
