// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_driver.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>

#include "pride/error.h"

namespace pride::cuda {
namespace {

std::string driver_library() {
  const char* named = std::getenv("PRIDE_CUDA_DRIVER");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

template <typename... P>
void load(const Library& library, const char* symbol, Call<P...>& call) {
  call.function = reinterpret_cast<Result (*)(P...)>(library.get(symbol));
}
template <typename... P>
void load_if_there(const Library& library, const char* symbol, Call<P...>& call) {
  call.function = reinterpret_cast<Result (*)(P...)>(library.find(symbol));
}

}  // namespace

Driver::Driver(const std::string& library) : library_(library) {
#define PRIDE_CUDA_LOAD(name, symbol, ...) load(library_, #symbol, name);
  PRIDE_CUDA_FUNCTIONS(PRIDE_CUDA_LOAD)
#undef PRIDE_CUDA_LOAD
#define PRIDE_CUDA_LOAD(name, symbol, ...) load_if_there(library_, #symbol, name);
  PRIDE_CUDA_OPTIONAL(PRIDE_CUDA_LOAD)
#undef PRIDE_CUDA_LOAD
  try {
    run(path(), cuInit, 0U);
    int version = 0;
    run(path(), cuDriverGetVersion, &version);
    version_ = concat(version / 1000, ".", version % 1000 / 10);
    run(path(), cuDeviceGetCount, &count_);
  } catch (const Error& e) {
    throw InvalidArgument(e.what());
  }
  PRIDE_CHECK(count_ > 0, path(), ": the driver (CUDA ", version_, ") finds no GPU");
}

std::string Driver::build() const {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path(), error);
  if (error) return path();
  const auto written = std::filesystem::last_write_time(file, error).time_since_epoch().count();
  std::ifstream module_of_kernel("/proc/driver/nvidia/version");
  std::string module;
  std::getline(module_of_kernel, module);
  return concat(file.string(), ", ", written, ", ", module);
}

void Driver::fail(const std::string& who, const char* call, Result result) const {
  const std::string text = concat(who, ": ", call, " failed: ", text_of(result));
  if (result == kOutOfMemory) throw OutOfMemory(text);
  throw Error(text);
}

std::string Driver::text_of(Result result) const {
  const char *name = nullptr, *meaning = nullptr;
  cuGetErrorName.function(result, &name);
  cuGetErrorString.function(result, &meaning);
  if (name == nullptr) return concat("error ", result);
  return meaning == nullptr ? name : concat(name, " (", meaning, ")");
}

const Driver& driver() {
  static std::mutex mutex;                                               // guards `found`
  static std::unique_ptr<Driver>& found = *new std::unique_ptr<Driver>;  // outlives all devices
  const std::lock_guard lock(mutex);
  if (found == nullptr) found = std::make_unique<Driver>(driver_library());
  return *found;
}

}  // namespace pride::cuda
