// Which instruction sets the kernels of this build can use on this machine, and which is active.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pride {

// Names of the usable sets, best first, e.g. {"AVX3_DL", "AVX3", "AVX2", "SSE4", "SSSE3",
// "SCALAR"}.
std::vector<std::string> available_isas();

// The one in use: the best, or what PRIDE_ISA named when the first kernel ran.
std::string active_isa();

// Forces one for the whole process (tests, benchmarks); "" goes back to the best.
// Not to be called while kernels run. Throws InvalidArgument, listing the names, if not usable.
void force_isa(std::string_view name);

}  // namespace pride
