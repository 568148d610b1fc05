// One thread in the BLAS of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride::inline program {

// For OpenBLAS, MKL and BLIS, whichever is loaded: their threads spin, and ranks share the cores.
void pin_blas();

}  // namespace pride::inline program
