// The driver of CUDA, libcuda.so.1, opened at run time. Types and functions are declared here, so
// that a build does not need CUDA.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/library.h"

namespace pride::cuda {

using Result = int;             // CUresult
using Handle = int;             // CUdevice
using Context = void*;          // CUcontext
using Stream = void*;           // CUstream
using EventHandle = void*;      // CUevent
using Module = void*;           // CUmodule
using Function = void*;         // CUfunction
using Address = std::uint64_t;  // CUdeviceptr

constexpr Result kSuccess = 0, kOutOfMemory = 2;
// of a module: an image of no known form, for other chips, or PTX of a newer CUDA
constexpr Result kInvalidImage = 200, kNoBinaryForGpu = 209, kNewerPtx = 222;
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kMemoryPools = 115;  // attributes
constexpr unsigned kNonBlockingStream = 1;            // does not wait for the null stream
constexpr unsigned kBlockingSync = 1, kNoTiming = 2;  // of events
constexpr unsigned kPortable = 1;                     // page-locked for all contexts

// Name, symbol (the version of the ABI), parameters.
#define PRIDE_CUDA_FUNCTIONS(X)                                                                 \
  X(cuInit, cuInit, unsigned)                                                                   \
  X(cuDriverGetVersion, cuDriverGetVersion, int*)                                               \
  X(cuGetErrorName, cuGetErrorName, Result, const char**)                                       \
  X(cuGetErrorString, cuGetErrorString, Result, const char**)                                   \
  X(cuDeviceGetCount, cuDeviceGetCount, int*)                                                   \
  X(cuDeviceGet, cuDeviceGet, Handle*, int)                                                     \
  X(cuDeviceGetName, cuDeviceGetName, char*, int, Handle)                                       \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, int*, int, Handle)                              \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, std::size_t*, Handle)                                \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, Context*, Handle)                       \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, Handle)                            \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, Context)                                             \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, Context*)                                              \
  X(cuModuleLoadData, cuModuleLoadData, Module*, const void*)                                   \
  X(cuModuleUnload, cuModuleUnload, Module)                                                     \
  X(cuModuleGetFunction, cuModuleGetFunction, Function*, Module, const char*)                   \
  X(cuStreamCreate, cuStreamCreate, Stream*, unsigned)                                          \
  X(cuStreamDestroy, cuStreamDestroy_v2, Stream)                                                \
  X(cuStreamSynchronize, cuStreamSynchronize, Stream)                                           \
  X(cuStreamWaitEvent, cuStreamWaitEvent, Stream, EventHandle, unsigned)                        \
  X(cuEventCreate, cuEventCreate, EventHandle*, unsigned)                                       \
  X(cuEventDestroy, cuEventDestroy_v2, EventHandle)                                             \
  X(cuEventRecord, cuEventRecord, EventHandle, Stream)                                          \
  X(cuEventQuery, cuEventQuery, EventHandle)                                                    \
  X(cuEventSynchronize, cuEventSynchronize, EventHandle)                                        \
  X(cuMemAlloc, cuMemAlloc_v2, Address*, std::size_t)                                           \
  X(cuMemFree, cuMemFree_v2, Address)                                                           \
  X(cuMemHostAlloc, cuMemHostAlloc, void**, std::size_t, unsigned)                              \
  X(cuMemFreeHost, cuMemFreeHost, void*)                                                        \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, Address, const void*, std::size_t, Stream)         \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, void*, Address, std::size_t, Stream)               \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, Address, Address, std::size_t, Stream)             \
  X(cuMemsetD32Async, cuMemsetD32Async, Address, unsigned, std::size_t, Stream)                 \
  X(cuLaunchKernel, cuLaunchKernel, Function, unsigned, unsigned, unsigned, unsigned, unsigned, \
    unsigned, unsigned, Stream, void**, void**)

// Functions of CUDA 11.2 and later, and those that the queue can do without.
#define PRIDE_CUDA_OPTIONAL(X)                                            \
  X(cuMemAllocAsync, cuMemAllocAsync, Address*, std::size_t, Stream)      \
  X(cuMemFreeAsync, cuMemFreeAsync, Address, Stream)                      \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, int*, int*) \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, Stream*, unsigned, int)

template <typename... Parameters>
struct Call {
  const char* name;
  Result (*function)(Parameters...);
};

class Driver {
 public:
  // Throws InvalidArgument if the library cannot be loaded, lacks a function, or finds no GPU.
  explicit Driver(const std::string& library);

  // Throws Error, or OutOfMemory, with call, error and `who` if the call fails.
  template <typename... P, typename... A>
  void run(const std::string& who, const Call<P...>& call, A... arguments) const {
    const Result result = call.function(arguments...);
    if (result != kSuccess) fail(who, call.name, result);
  }
  [[noreturn]] void fail(const std::string& who, const char* call, Result result) const;
  std::string text_of(Result result) const;  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"

  const std::string& path() const noexcept { return library_.path(); }
  const std::string& version() const noexcept { return version_; }  // of CUDA: "13.0"
  int count() const noexcept { return count_; }                     // of GPUs

  // Another text for another build, also one with the same version of CUDA: the file, when it was
  // written, and what the kernel's module says of itself.
  std::string build() const;

 private:
  Library library_;
  std::string version_;
  int count_ = 0;

 public:
#define PRIDE_CUDA_MEMBER(name, symbol, ...) Call<__VA_ARGS__> name{#name, nullptr};
  PRIDE_CUDA_FUNCTIONS(PRIDE_CUDA_MEMBER)
  PRIDE_CUDA_OPTIONAL(PRIDE_CUDA_MEMBER)
#undef PRIDE_CUDA_MEMBER
};

// The driver of this process: the library that PRIDE_CUDA_DRIVER names, or libcuda.so.1. Until one
// is found, each call searches again. Throws as the constructor does.
const Driver& driver();

}  // namespace pride::cuda
