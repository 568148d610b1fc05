// Instruction sets of the kernels: those usable on this machine, and the active one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pride {

// Names of the usable sets, best first, e.g. {"AVX3_DL", "AVX3", "AVX2", "SSE4", "SSSE3",
// "SCALAR"}.
std::vector<std::string> available_isas();

// The active set: the best one, or the value of PRIDE_ISA when the first kernel ran.
std::string active_isa();

// Selects a set for the whole process, for tests and benchmarks; "" selects the best. Do not call
// it while kernels run. Throws InvalidArgument, listing the names, if the set is not usable.
void force_isa(std::string_view name);

}  // namespace pride
