// Threads and kernels of the BLAS of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride::inline program {

// For OpenBLAS, MKL and BLIS, whichever is loaded: their threads spin, and ranks share the cores.
void pin_blas();

// An OpenBLAS that is older than the CPU takes kernels without AVX, which are six times slower.
// Then this starts the program again with OPENBLAS_CORETYPE, if that is not set; else it does
// nothing. REQUIRES: no threads of the program, and nothing that ends with it.
void use_kernels_of_this_cpu(char** argv);

}  // namespace pride::inline program
