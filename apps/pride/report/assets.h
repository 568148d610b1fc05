// Files that are compiled into the program: what every page of a report carries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride::app {

extern const char* const kPageJs;
extern const char* const kPageCss;

}  // namespace pride::app
