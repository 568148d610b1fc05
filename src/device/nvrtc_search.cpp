// The search for NVRTC: among loaded libraries, beside torch, in a toolkit, in the system.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "device/nvrtc.h"
#include "pride/error.h"

namespace pride::cuda {
namespace {

namespace fs = std::filesystem;

// libnvrtc.so.13, or libnvrtc-672ee683.so.11.2 in older wheels of torch; but neither
// libnvrtc-builtins.so.13.0 nor libnvrtc.alt.so.13.
bool is_nvrtc(const std::string& file) {
  return file.starts_with("libnvrtc") && file.find(".so") != std::string::npos &&
         file.find("builtins") == std::string::npos && file.find(".alt.") == std::string::npos;
}

// Paths of the wanted files in a folder, in descending order: new versions first, the link for
// builds last.
std::vector<std::string> files_of(const fs::path& folder,
                                  const std::function<bool(const std::string&)>& wanted) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (wanted(at->path().filename().string())) found.push_back(at->path().string());
  }
  std::ranges::sort(found, std::greater());
  return found;
}

void add_folder(const fs::path& folder, std::vector<std::string>& candidates) {
  for (std::string& file : files_of(folder, is_nvrtc)) candidates.push_back(std::move(file));
}

// site-packages/torch/lib, and the folders of NVIDIA's wheels in site-packages/nvidia
void add_torch(const std::vector<std::string>& loaded, std::vector<std::string>& candidates) {
  for (const std::string& library : loaded) {
    const fs::path path(library);
    const std::string file = path.filename().string();
    if (!file.starts_with("libtorch") && !file.starts_with("libc10")) continue;
    add_folder(path.parent_path(), candidates);
    const fs::path nvidia = path.parent_path() / ".." / ".." / "nvidia";
    for (const std::string& part :
         files_of(nvidia, [](const std::string& name) { return name.starts_with("cu"); })) {
      add_folder(fs::path(part).lexically_normal() / "lib", candidates);
    }
    return;  // all libraries of torch lie in one folder
  }
}

void add_toolkits(std::vector<std::string>& candidates) {
  std::vector<fs::path> roots;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* root = std::getenv(variable);
    if (root != nullptr && *root != '\0') roots.emplace_back(root);
  }
  roots.emplace_back("/usr/local/cuda");
  for (const fs::path& root : roots) {
    for (const char* folder : {"lib64", "lib"}) add_folder(root / folder, candidates);
  }
}

// An NVRTC without RUNPATH does not find the library of its built-ins beside it, unless that
// library is loaded.
void load_builtins(const std::string& nvrtc) {
  const auto builtins = [](const std::string& file) {
    return file.starts_with("libnvrtc-builtins.so.");
  };
  for (const std::string& file : files_of(fs::path(nvrtc).parent_path(), builtins)) {
    try {
      const Library library(file);
    } catch (const InvalidArgument&) {
      continue;  // NVRTC's own search may find another
    }
  }
}

}  // namespace

std::vector<std::string> nvrtc_candidates(const std::vector<std::string>& loaded) {
  const char* named = std::getenv("PRIDE_NVRTC");
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> candidates;
  for (const std::string& library : loaded) {
    if (is_nvrtc(fs::path(library).filename().string())) candidates.push_back(library);
  }
  add_torch(loaded, candidates);
  add_toolkits(candidates);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"}) {
    candidates.emplace_back(name);
  }
  return candidates;
}

std::shared_ptr<const Nvrtc> open_nvrtc(const std::string& candidate) {
  if (candidate.find('/') != std::string::npos) load_builtins(candidate);
  return std::make_shared<const Nvrtc>(candidate);
}

std::shared_ptr<const Nvrtc> find_nvrtc() {
  std::string tried;
  for (const std::string& candidate : nvrtc_candidates(loaded_libraries())) {
    try {
      return open_nvrtc(candidate);
    } catch (const Error& e) {
      tried += concat("\n  ", e.what());
    }
  }
  throw InvalidArgument(no_nvrtc(tried));
}

std::string no_nvrtc(const std::string& tried) {
  return concat(
      "no NVRTC, which compiles the kernels for a GPU: install the Python package "
      "nvidia-cuda-nvrtc or a CUDA toolkit, no newer than the driver, or name the file "
      "libnvrtc.so.* in PRIDE_NVRTC. Tried:",
      tried);
}

}  // namespace pride::cuda
