// The kernels as a GPU runs them, on threads of the host: one for each lane of a block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace pride {

// Runs the kernel of this name, "lion_signs", on a grid of so many blocks of 64 threads, one block
// after the other. A ballot that a lane of its warp does not reach throws at once in the others.
void run_as_warps(const std::string& kernel, const void* jobs, const void* first, std::uint32_t n,
                  unsigned blocks);

}  // namespace pride
