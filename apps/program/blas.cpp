// SPDX-License-Identifier: Apache-2.0
#include "program/blas.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace pride::inline program {
namespace {

// OpenBLAS's name for kernels that this CPU can run; null if it has no AVX2.
const char* kernels_of_this_cpu() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

}  // namespace

void pin_blas() {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    setenv(name, "1", 1);
  }
  for (const char* name :
       {"openblas_set_num_threads", "MKL_Set_Num_Threads", "bli_thread_set_num_threads"}) {
    if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, name))) set(1);
  }
}

void use_kernels_of_this_cpu(char** argv) {
  constexpr const char *kVariable = "OPENBLAS_CORETYPE", *kMark = "PRIDE_OPENBLAS_CHOSEN";
  if (getenv(kMark) != nullptr) {  // this is the second start: children choose for themselves
    unsetenv(kMark);
    unsetenv(kVariable);
    return;
  }
  auto* const name = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  const char* const kernels = kernels_of_this_cpu();
  if (name == nullptr || kernels == nullptr || std::string_view(name()) != "Prescott") return;
  if (getenv(kVariable) != nullptr) return;
  std::array<char, 4096> program = {};  // its path, so that it keeps its name
  const ssize_t n = readlink("/proc/self/exe", program.data(), program.size() - 1);
  if (n <= 0) return;  // no /proc: slow, as before
  setenv(kVariable, kernels, 1);
  setenv(kMark, kernels, 1);
  execv(program.data(), argv);
  unsetenv(kVariable);
  unsetenv(kMark);
}

}  // namespace pride::inline program
