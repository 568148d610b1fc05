// Which BLAS this process has loaded, asked of the loaded libraries themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride::app {

// E.g. "OpenBLAS 0.3.21 NO_AFFINITY USE64... core Haswell"; "unknown (FILE)" for a BLAS that does
// not say its name; "none" if no BLAS is loaded.
std::string blas_in_use();

}  // namespace pride::app
