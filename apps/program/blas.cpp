// SPDX-License-Identifier: Apache-2.0
#include "program/blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <initializer_list>

namespace pride::inline program {

void pin_blas() {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    setenv(name, "1", 1);
  }
  for (const char* name :
       {"openblas_set_num_threads", "MKL_Set_Num_Threads", "bli_thread_set_num_threads"}) {
    if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, name))) set(1);
  }
}

}  // namespace pride::inline program
