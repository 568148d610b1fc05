// Devices: where an optimizer's tensors and state may lie, and its method run, instead of the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
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
// Replaces each matrix by its Newton-Schulz iterate (docs/methods/dlion-muon.md), with the caller's
// own products of matrices, in work that it queues on the stream of the device (a CUstream).
using Orthogonalise = std::function<void(const DeviceMatrices& matrices, void* stream)>;

// A GPU of CUDA by its number, with a queue of its own. The driver's libcuda.so.1 and NVRTC are
// looked for at run time; the kernels are compiled for this GPU at the first use and kept in a
// cache folder. Throws InvalidArgument with the reason where the device cannot be used.
std::shared_ptr<Device> cuda_device(int number);

// Bytes per second of a device's copies: within its memory, read and written; and of copies to the
// page-locked memory of the host, or from it.
struct CopyRates {
  double memory = 0, to_host = 0, from_host = 0;
  double link() const { return std::min(to_host, from_host); }
};
// Measures them, each for at least `seconds` and `least` times. Copies are of `bytes`, but of at
// most 256 MiB to and from the host. Meanwhile twice `bytes` of the device's memory are held.
// Throws InvalidArgument on fewer than 4 bytes, negative seconds or no repetition; Error if the
// device has not the memory.
CopyRates measure_copies(Device& device, std::size_t bytes, double seconds, int least);

// What was found on this machine. `reason`: why there are no GPUs here, or why they cannot be used.
struct CudaGpu {
  int number = 0;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  std::uint64_t bytes = 0;   // of its memory
};
struct CudaReport {
  std::vector<CudaGpu> gpus;
  std::string driver;  // version of CUDA that the driver has, "13.0"; empty: no driver
  std::string nvrtc;   // path and version of NVRTC; empty: none was found
  std::string cache;   // the folder of compiled kernels
  std::string reason;
};
CudaReport cuda_report();

}  // namespace pride
