// Devices: GPUs that hold an optimizer's tensors and state and run its method, instead of the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pride {

class Device;

// Matrices of one shape in the memory of a device, each in row-major order, `stride` floats from
// one row to the next.
struct DeviceMatrices {
  std::span<float* const> data = {};
  std::size_t rows = 0, cols = 0, stride = 0;
  int iterations = 5;
};
// Replaces each matrix by its Newton-Schulz iterate (docs/methods/muon.md). The caller's
// function multiplies the matrices in work that it queues on `stream`, the device's CUstream.
using Orthogonalise = std::function<void(const DeviceMatrices& matrices, void* stream)>;

// Opens a CUDA GPU by its number, with its own queue. It loads libcuda.so.1 (of the driver) and
// NVRTC at run time. Kernels are compiled for this GPU at its first use, and run once beside the
// host's; image and verdict are kept in a cache folder. Throws InvalidArgument, with the reason, if
// the GPU cannot be used, or a kernel's bits are not those of the host; OutOfMemory if it is full.
std::shared_ptr<Device> cuda_device(int number);

// Sets what is called when an allocation finds the device full, before it is tried once more. It
// frees memory that the process keeps for later, such as torch's cache, and waits until that is
// done. It must not call an optimizer. Without it, or if there is still no memory, the call throws
// OutOfMemory, which names the device and the bytes.
void set_make_room(Device& device, std::function<void()> make_room);

// Bytes per second of copies: within a device's memory (read and written), and to and from
// page-locked memory of the host.
struct CopyRates {
  double memory = 0, to_host = 0, from_host = 0;
  double link() const { return std::min(to_host, from_host); }
};
// Measures each rate for at least `seconds` and `least` times. Copies are of `bytes`; those to and
// from the host are of at most 256 MiB. It allocates twice `bytes` on the device, and frees them.
// Throws InvalidArgument if bytes < 4, seconds < 0 or least < 1, and OutOfMemory.
CopyRates measure_copies(Device& device, std::size_t bytes, double seconds, int least);

// The GPUs, driver and NVRTC of this machine. `reason`: what is missing; empty if GPUs are usable.
struct CudaGpu {
  int number = 0;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  std::uint64_t bytes = 0;   // of its memory
};
struct CudaReport {
  std::vector<CudaGpu> gpus;
  std::string driver;  // the driver's version of CUDA, "13.0"; empty: no driver
  std::string nvrtc;   // path and version of NVRTC; empty: not found
  std::string cache;   // the folder of compiled kernels
  std::string reason;
  std::string unchecked;  // GPUs without the memory to run kernels now, and the calls that failed

  std::vector<std::pair<std::string, std::string>> lines() const;  // labels and values
};
// run_kernels: also opens each GPU, as cuda_device().
CudaReport cuda_report(bool run_kernels = false);

}  // namespace pride
