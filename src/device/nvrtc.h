// NVRTC, CUDA's compiler as a library, opened at run time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/library.h"
#include "pride/error.h"

namespace pride::cuda {

// The output of NVRTC for a chip: a cubin, or PTX if the chip is newer than NVRTC. The driver then
// compiles the PTX.
struct Target {
  int architecture = 0;  // 90 for sm_90
  bool ptx = false;

  std::string option() const;  // "sm_90", "compute_90"
};

// The compiler refuses the kernels. The text has its first error.
struct CompileFailure : InvalidArgument {
  CompileFailure(const std::string& text, std::string whole)
      : InvalidArgument(text), log(std::move(whole)) {}
  std::string log;
};

class Nvrtc {
 public:
  // Throws InvalidArgument if the library cannot be loaded or is older than CUDA 11.2.
  explicit Nvrtc(const std::string& library);

  const std::string& path() const noexcept { return library_.path(); }
  const std::string& version() const noexcept { return version_; }  // "13.0"
  std::vector<int> architectures() const;                           // ascending

  // The chip itself if NVRTC compiles for it, otherwise PTX for the newest older chip. Throws
  // InvalidArgument if NVRTC compiles only for newer chips.
  Target target_of(int chip) const;

  // Returns a cubin or PTX. Throws CompileFailure, or InvalidArgument if another call fails.
  std::string compile(const std::string& source, const Target& target) const;
  static std::vector<std::string> options(const Target& target);

 private:
  using Result = int;     // nvrtcResult
  using Program = void*;  // nvrtcProgram
  using Size = Result (*)(Program, std::size_t*);
  using Text = Result (*)(Program, char*);
  struct Functions {
    Result (*version)(int*, int*);
    Result (*n_architectures)(int*);
    Result (*architectures)(int*);
    Result (*create)(Program*, const char*, const char*, int, const char* const*,
                     const char* const*);
    Result (*destroy)(Program*);
    Result (*compile)(Program, int, const char* const*);
    const char* (*error)(Result);
    Size log_size, cubin_size, ptx_size;
    Text log, cubin, ptx;
  };

  std::string text_of(Program program, Size size, Text text) const;
  void check(Result result, const char* call) const;

  Library library_;
  Functions call_{};
  std::string version_;
};

// Files and names to try. If PRIDE_NVRTC is set, only that; else in this order: loaded libraries;
// beside a loaded libtorch; toolkits (CUDA_HOME, CUDA_PATH, /usr/local/cuda); the system.
std::vector<std::string> nvrtc_candidates(const std::vector<std::string>& loaded);

// Opens a candidate. Throws as the constructor does.
std::shared_ptr<const Nvrtc> open_nvrtc(const std::string& candidate);

// Opens the first candidate that can be used. Throws InvalidArgument with what was tried and what
// to install.
std::shared_ptr<const Nvrtc> find_nvrtc();

// The text of an error: what to install, and what was tried.
std::string no_nvrtc(const std::string& tried);

}  // namespace pride::cuda
