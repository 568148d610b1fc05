// The BLAS in use, through the dynamic linker: pride itself calls none.
// SPDX-License-Identifier: Apache-2.0
#include "blas_info.h"

#include <dlfcn.h>

namespace pride::app {
namespace {

// Result of a loaded function `const char* name()`, or "".
std::string ask(const char* name) {
  using Function = const char* (*)();
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  const char* text = function != nullptr ? function() : nullptr;
  return text != nullptr ? text : "";
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

}  // namespace

std::string blas_in_use() {
  if (const std::string config = ask("openblas_get_config"); !config.empty()) {
    return trimmed(config) + ", core " + ask("openblas_get_corename");
  }
  if (const std::string version = ask("bli_info_get_version_str"); !version.empty()) {
    return "BLIS " + version;
  }
  using Version = void (*)(char*, int);
  if (const auto mkl = reinterpret_cast<Version>(dlsym(RTLD_DEFAULT, "mkl_get_version_string"))) {
    char text[256] = {};
    mkl(text, sizeof text - 1);
    return trimmed(text);
  }
  Dl_info where{};
  if (void* sgemm = dlsym(RTLD_DEFAULT, "sgemm_"); sgemm != nullptr && dladdr(sgemm, &where) != 0) {
    return std::string("unknown (") + where.dli_fname + ")";
  }
  return "none";
}

}  // namespace pride::app
